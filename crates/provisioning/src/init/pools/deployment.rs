//! The MachineDeployment of a pool. Pure.

use std::collections::BTreeMap;

use drover_api::capi::v1beta2::{
    self as capi, Bootstrap, ContractVersionedObjectReference, MachineDeletionSpec, MachineDeployment,
    MachineDeploymentRolloutSpec, MachineDeploymentRolloutStrategy,
    MachineDeploymentRolloutStrategyRollingUpdate, MachineDeploymentSpec, MachineSetDeletionSpec,
    MachineSpec, MachineTemplateSpec,
};
use drover_api::provisioning::v1::RKEMachinePool;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::deployment_name;
use super::duration::seconds;
use crate::keys::{annotations, labels};

/// Where a pool's machines come from.
pub struct References {
    pub infrastructure: ContractVersionedObjectReference,
    pub bootstrap_template: String,
}

/// The MachineDeployment of a pool.
pub fn machine_deployment(
    namespace: &str,
    cluster: &str,
    pool: &RKEMachinePool,
    defaults: Option<i64>,
    refs: References,
) -> MachineDeployment {
    let name = deployment_name(cluster, &pool.name);
    let os = if pool.machine_os.is_empty() { "linux" } else { &pool.machine_os };
    let mut top_labels = pool.labels.clone();
    top_labels.extend(pool.machine_deployment_labels.clone());
    top_labels.insert(labels::OS.to_owned(), os.to_owned());
    top_labels.insert(labels::capi::CLUSTER_NAME.to_owned(), cluster.to_owned());
    let mut notes = pool.machine_deployment_annotations.clone();
    for (key, size) in [
        (annotations::capi::AUTOSCALER_MIN_SIZE, pool.autoscaling_min_size),
        (annotations::capi::AUTOSCALER_MAX_SIZE, pool.autoscaling_max_size),
    ] {
        if let Some(size) = size {
            notes.insert(key.to_owned(), size.to_string());
        }
    }
    let selected = [(labels::capi::CLUSTER_NAME, cluster), (labels::capi::DEPLOYMENT_NAME, &name)];
    let selected = selected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let drain = seconds(pool.drain_before_delete_timeout.as_deref());
    let template = MachineTemplateSpec {
        metadata: Some(capi::ObjectMeta {
            labels: template_labels(cluster, &name, pool, os),
            annotations: template_annotations(pool, defaults),
        }),
        spec: MachineSpec {
            cluster_name: cluster.to_owned(),
            bootstrap: Bootstrap {
                config_ref: Some(ContractVersionedObjectReference {
                    api_group: "rke.cattle.io".into(),
                    kind: "RKEBootstrapTemplate".into(),
                    name: refs.bootstrap_template,
                }),
                ..Bootstrap::default()
            },
            infrastructure_ref: refs.infrastructure,
            deletion: drain.map(|limit| MachineDeletionSpec {
                node_drain_timeout_seconds: Some(limit),
                ..MachineDeletionSpec::default()
            }),
            ..MachineSpec::default()
        },
    };
    let rolling = pool.rolling_update.as_ref().map(|rolling| MachineDeploymentRolloutStrategyRollingUpdate {
        max_surge: rolling.max_surge.clone(),
        max_unavailable: rolling.max_unavailable.clone(),
    });
    let spec = MachineDeploymentSpec {
        cluster_name: cluster.to_owned(),
        selector: LabelSelector { match_labels: Some(selected.into()), ..LabelSelector::default() },
        rollout: Some(MachineDeploymentRolloutSpec {
            strategy: Some(MachineDeploymentRolloutStrategy {
                type_: "RollingUpdate".into(),
                rolling_update: rolling,
            }),
            ..MachineDeploymentRolloutSpec::default()
        }),
        deletion: Some(MachineSetDeletionSpec { order: Some("Oldest".into()) }),
        replicas: pool.quantity,
        paused: pool.paused.then_some(true),
        template,
        ..MachineDeploymentSpec::default()
    };
    let mut deployment = MachineDeployment::new(&name, spec);
    deployment.metadata = ObjectMeta {
        namespace: Some(namespace.to_owned()),
        labels: Some(top_labels),
        annotations: Some(notes),
        ..deployment.metadata
    };
    deployment
}

fn template_labels(
    cluster: &str,
    deployment: &str,
    pool: &RKEMachinePool,
    os: &str,
) -> BTreeMap<String, String> {
    let mut all = pool.labels.clone();
    let mut set = |key: &str, value: &str| {
        all.insert(key.to_owned(), value.to_owned());
    };
    set(labels::capi::CLUSTER_NAME, cluster);
    set(labels::capi::DEPLOYMENT_NAME, deployment);
    set(labels::CLUSTER_NAME, cluster);
    set(labels::MACHINE_POOL_NAME, &pool.name);
    set(labels::OS, os);
    if pool.etcd_role {
        set(labels::ETCD_ROLE, "true");
    }
    if pool.control_plane_role {
        set(labels::CONTROL_PLANE_ROLE, "true");
        set(labels::capi::CONTROL_PLANE, "true");
    }
    if pool.worker_role {
        set(labels::WORKER_ROLE, "true");
    }
    all
}

fn template_annotations(pool: &RKEMachinePool, default_limit: Option<i64>) -> BTreeMap<String, String> {
    let mut notes = BTreeMap::new();
    if !pool.drain_before_delete {
        notes.insert(annotations::capi::EXCLUDE_NODE_DRAINING.to_owned(), "true".to_owned());
    }
    if !pool.labels.is_empty() {
        notes.insert(annotations::LABELS.to_owned(), compact(&json!(pool.labels)));
    }
    if !pool.taints.is_empty() {
        notes.insert(annotations::TAINTS.to_owned(), compact(&json!(pool.taints)));
    }
    let limit = Some(pool.hostname_length_limit).filter(|limit| *limit > 0).or(default_limit);
    if let Some(limit) = limit.filter(|limit| *limit > 0) {
        notes.insert(annotations::HOSTNAME_LENGTH_LIMIT.to_owned(), limit.to_string());
    }
    notes
}

fn compact(value: &Value) -> String {
    String::from_utf8_lossy(&crate::digest::go_json(value)).into_owned()
}
