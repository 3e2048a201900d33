//! When templates are equal, and the content of a MachineSet. Pure.

use std::collections::BTreeMap;

use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::{MachineDeployment, MachineSet, MachineSetSpec, MachineSpec};
use drover_api::finalizers;
use drover_api::labels::capi as labels;
use kube::ResourceExt;

use crate::meta;

/// The differences between two templates that require new Machines; all others are changed in place.
pub fn template_differences(wanted: &MachineSpec, present: &MachineSpec) -> Vec<String> {
    let mut differences = Vec::new();
    let show = |value: &Option<String>| value.clone().unwrap_or_else(|| "unset".to_owned());
    if wanted.version != present.version {
        differences.push(format!("Version {}, {} required", show(&present.version), show(&wanted.version)));
    }
    if wanted.failure_domain != present.failure_domain {
        let (have, want) = (show(&present.failure_domain), show(&wanted.failure_domain));
        differences.push(format!("Failure domain {have}, {want} required"));
    }
    let reference =
        |r: &drover_api::capi::v1beta2::ContractVersionedObjectReference| format!("{} {}", r.kind, r.name);
    if wanted.infrastructure_ref != present.infrastructure_ref {
        let (have, want) = (reference(&present.infrastructure_ref), reference(&wanted.infrastructure_ref));
        differences.push(format!("{have}, {want} required"));
    }
    if wanted.bootstrap != present.bootstrap {
        let show = |bootstrap: &drover_api::capi::v1beta2::Bootstrap| match &bootstrap.config_ref {
            Some(config) => reference(config),
            None => format!("spec.bootstrap.dataSecretName {}", show(&bootstrap.data_secret_name)),
        };
        differences.push(format!("{}, {} required", show(&present.bootstrap), show(&wanted.bootstrap)));
    }
    differences
}

/// The revision of a set; 0 if it has none.
pub(super) fn revision(set: &MachineSet) -> i64 {
    meta::annotation(&set.metadata, annotations::REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The desired state of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct SetPlan {
    /// Its name.
    pub name: String,
    /// Whether it has to be created.
    pub create: bool,
    /// Its replicas.
    pub replicas: i32,
    /// Its revision.
    pub revision: i64,
    /// It must not create Machines, because the newest set replaces them.
    pub disable_create: bool,
}

/// The desired MachineSet. Fields of an old set that would replace Machines stay unchanged.
pub fn machine_set(
    deployment: &MachineDeployment,
    plan: &SetPlan,
    live: Option<&MachineSet>,
    max_replicas: i32,
) -> MachineSet {
    let mut template = deployment.spec.template.clone();
    if let Some(live) = live {
        let kept = &live.spec.template.spec;
        template.spec.version = kept.version.clone();
        template.spec.failure_domain = kept.failure_domain.clone();
        template.spec.infrastructure_ref = kept.infrastructure_ref.clone();
        template.spec.bootstrap = kept.bootstrap.clone();
    }
    let hash = live
        .and_then(|live| meta::label(&live.metadata, labels::MACHINE_TEMPLATE_HASH).map(str::to_owned))
        .unwrap_or_else(|| template_hash(deployment, &plan.name));
    let mut template_meta = template.metadata.take().unwrap_or_default();
    template_meta.labels.insert(labels::CLUSTER_NAME.to_owned(), deployment.spec.cluster_name.clone());
    template_meta.labels.insert(labels::DEPLOYMENT_NAME.to_owned(), deployment.name_any());
    template_meta.labels.insert(labels::MACHINE_TEMPLATE_HASH.to_owned(), hash.clone());
    let set_labels = template_meta.labels.clone();
    template.metadata = Some(template_meta);
    let mut selector =
        live.map_or_else(|| deployment.spec.selector.clone(), |live| live.spec.selector.clone());
    selector.match_labels.get_or_insert_default().insert(labels::MACHINE_TEMPLATE_HASH.to_owned(), hash);
    let mut set = MachineSet::new(
        &plan.name,
        MachineSetSpec {
            cluster_name: deployment.spec.cluster_name.clone(),
            replicas: Some(plan.replicas),
            selector,
            template,
            deletion: deployment.spec.deletion.clone(),
            machine_naming: deployment.spec.machine_naming.clone(),
        },
    );
    set.metadata.namespace = deployment.namespace();
    set.metadata.labels = Some(set_labels);
    set.metadata.annotations = Some(set_annotations(deployment, plan, live, max_replicas));
    set.metadata.owner_references = Some(vec![meta::owner_reference(deployment, true)]);
    // Set at creation, so that the first pass of its controller does not have to write.
    set.metadata.finalizers = Some(vec![finalizers::capi::MACHINE_SET.to_owned()]);
    set
}

fn set_annotations(
    deployment: &MachineDeployment,
    plan: &SetPlan,
    live: Option<&MachineSet>,
    max_replicas: i32,
) -> BTreeMap<String, String> {
    let own = [
        "kubectl.kubernetes.io/last-applied-configuration",
        annotations::REVISION,
        annotations::REVISION_HISTORY,
        annotations::DESIRED_REPLICAS,
        annotations::MAX_REPLICAS,
        annotations::CONVERSION_DATA,
    ];
    let copied = deployment.annotations().iter().filter(|(key, _)| !own.contains(&key.as_str()));
    let mut all: BTreeMap<String, String> = copied.map(|(key, value)| (key.clone(), value.clone())).collect();
    all.insert(annotations::REVISION.to_owned(), plan.revision.to_string());
    all.insert(annotations::DESIRED_REPLICAS.to_owned(), deployment.spec.replicas.unwrap_or(1).to_string());
    all.insert(annotations::MAX_REPLICAS.to_owned(), max_replicas.to_string());
    if plan.disable_create {
        all.insert(annotations::DISABLE_MACHINE_CREATE.to_owned(), "true".to_owned());
    }
    if let Some(live) = live {
        let history = meta::annotation(&live.metadata, annotations::REVISION_HISTORY);
        let former = revision(live);
        let mut entries: Vec<String> =
            history.into_iter().flat_map(|h| h.split(',')).map(str::to_owned).collect();
        if former != 0 && former != plan.revision && !entries.contains(&former.to_string()) {
            entries.push(former.to_string());
        }
        if !entries.is_empty() {
            all.insert(annotations::REVISION_HISTORY.to_owned(), entries.join(","));
        }
    }
    all
}

/// Unique per set: a hash of the template and the random end of the set's name.
fn template_hash(deployment: &MachineDeployment, set: &str) -> String {
    let text = serde_json::to_string(&deployment.spec.template).unwrap_or_default();
    let hash =
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let suffix = set.rsplit_once('-').map_or(set, |(_, suffix)| suffix);
    format!("{hash}-{suffix}")
}
