//! Values of a Cluster that can never become valid. The API rejects them, with their fields. Pure.
//!
//! References to what may be added later (the data of a version, a config, a driver) are stored and reported in the status.
//! On an API that is not Drover's own, the status reports all problems.

use drover_api::provisioning::v1::{Cluster, RKEMachinePool};
use serde_json::{Value, json};

use super::name_problem;
use crate::init::objects::template::CONFIG_API_VERSION;
use crate::init::pools::problems::{self, is_dns_label};
use crate::init::twin::{annotation, identity};
use crate::keys::annotations;

/// A field that can never work.
#[derive(Clone, Debug, PartialEq)]
pub struct Never {
    /// Path of the field.
    pub field: String,
    pub value: Value,
    /// What is wrong with it and what to write instead.
    pub why: String,
}

/// Everything of a Cluster that can never work. On an update, what the old one has too is left to the status: other
/// changes, and deletion, must be possible.
pub fn refusals(new: &Cluster, old: Option<&Cluster>) -> Vec<Never> {
    let mut found = all(new);
    let before = old.map(all).unwrap_or_default();
    found.retain(|never| !before.iter().any(|known| known.value == never.value && known.why == never.why));
    found
}

fn all(cluster: &Cluster) -> Vec<Never> {
    let mut found = Vec::new();
    let mut refuse = |field: String, value: Value, why: String| found.push(Never { field, value, why });
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    if let Some(why) = name_problem(cluster).filter(|_| !name.is_empty()) {
        refuse("metadata.name".into(), json!(name), why);
    }
    let chosen = annotation(cluster, annotations::MANAGEMENT_CLUSTER_NAME);
    if !chosen.is_empty() && !identity::is_id(chosen) {
        let field = format!("metadata.annotations[{}]", annotations::MANAGEMENT_CLUSTER_NAME);
        refuse(field, json!(chosen), NOT_AN_ID.to_owned());
    }
    let Some(config) = &cluster.spec.rke_config else { return found };
    let version = &cluster.spec.kubernetes_version;
    if let Some(why) = version_problem(version) {
        refuse("spec.kubernetesVersion".into(), json!(version), why);
    }
    for (index, pool) in config.machine_pools.iter().enumerate() {
        let path = |field: &str| format!("spec.rkeConfig.machinePools[{index}].{field}");
        if !is_dns_label(&pool.name) {
            refuse(path("name"), json!(pool.name), problems::DNS_LABEL.to_owned());
        }
        let reference = &pool.machine_config_ref;
        if let Some(why) = kind_problem(pool) {
            refuse(path("machineConfigRef.kind"), json!(reference.kind), why);
        }
        let name = reference.name.as_deref().unwrap_or_default();
        if !name.is_empty() && !is_object_name(name) {
            let why = "no object can have this name: use at most 253 lower-case letters, digits, '-' and '.'";
            refuse(path("machineConfigRef.name"), json!(name), why.to_owned());
        }
    }
    found
}

const NOT_AN_ID: &str = "the id of a management cluster is c-m- and 8, or c- and 5, lower-case letters and digits: \
     remove the annotation, or set it to such an id";

/// A version that no release of either distribution can have.
fn version_problem(version: &str) -> Option<String> {
    const EXAMPLE: &str = "set a full version with its distribution, such as v1.34.1+k3s1";
    let parsed = version.strip_prefix('v').and_then(|number| semver::Version::parse(number).ok());
    let Some(parsed) = parsed else {
        return Some(format!("this is no version: {EXAMPLE}"));
    };
    // Releases count their builds (k3s1, rke2r2); builds from sources name their commit (k3s-1a2b3c4d).
    let is_build = |name: &str| {
        let rest = parsed.build.strip_prefix(name)?;
        let rest = rest.strip_prefix('r').filter(|_| name == "rke2").unwrap_or(rest);
        Some(rest.starts_with(|c: char| c.is_ascii_digit()) || rest.len() > 1 && rest.starts_with('-'))
    };
    let distribution = ["k3s", "rke2"].into_iter().filter_map(is_build).any(|good| good);
    (!distribution).then(|| format!("the version names no build of K3s (+k3s1) or RKE2 (+rke2r1): {EXAMPLE}"))
}

/// A kind that no node driver can provide. Kinds of other providers are theirs.
fn kind_problem(pool: &RKEMachinePool) -> Option<String> {
    let reference = &pool.machine_config_ref;
    let ours = reference.api_version.as_deref().is_none_or(|v| v.is_empty() || v == CONFIG_API_VERSION);
    let kind = reference.kind.as_deref().unwrap_or_default();
    let driver = kind.strip_suffix("Config").unwrap_or_default();
    let is_driver = driver.starts_with(|c: char| c.is_ascii_uppercase())
        && driver.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (ours && !kind.is_empty() && !is_driver).then(|| {
        "no node driver provides this kind: write the driver's name with a capital letter and Config behind it, such as \
         LocalConfig"
            .to_owned()
    })
}

fn is_object_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(|part| !part.is_empty() && is_dns_label_of_any_length(part))
}

fn is_dns_label_of_any_length(part: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    part.bytes().all(|byte| inner(byte) || byte == b'-')
        && part.bytes().next().is_some_and(inner)
        && part.bytes().last().is_some_and(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(name: &str, version: &str, pool: Value) -> Cluster {
        serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": name},
            "spec": {"kubernetesVersion": version, "rkeConfig": {"machinePools": [pool]}},
        }))
        .unwrap()
    }

    fn pool(name: &str, kind: &str, config: &str) -> Value {
        json!({"name": name, "machineConfigRef": {"kind": kind, "name": config}})
    }

    fn fields(cluster: &Cluster) -> Vec<String> {
        refusals(cluster, None).into_iter().map(|never| never.field).collect()
    }

    #[test]
    fn everything_that_can_never_work_is_named_in_one_answer() {
        let bad = cluster("c-abcde", "latest", pool("A_B", "banana", "X Y"));
        let wanted = [
            "metadata.name",
            "spec.kubernetesVersion",
            "spec.rkeConfig.machinePools[0].name",
            "spec.rkeConfig.machinePools[0].machineConfigRef.kind",
            "spec.rkeConfig.machinePools[0].machineConfigRef.name",
        ];
        assert_eq!(fields(&bad), wanted);
        assert!(refusals(&bad, Some(&bad)).is_empty(), "what is stored can be changed and deleted");
        let worse = cluster("c-abcde", "newest", pool("A_B", "banana", "X Y"));
        let reported = refusals(&worse, Some(&bad));
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert_eq!(
            (reported[0].field.as_str(), &reported[0].value),
            ("spec.kubernetesVersion", &json!("newest"))
        );
    }

    #[test]
    fn an_annotation_that_does_not_name_the_id_of_a_management_cluster_is_refused() {
        let with = |id: &str| {
            let mut cluster = cluster("demo", "v1.34.1+k3s1", pool("w", "LocalConfig", "w"));
            cluster.metadata.annotations =
                Some([(annotations::MANAGEMENT_CLUSTER_NAME.into(), id.into())].into());
            fields(&cluster)
        };
        assert!(with("c-m-abcd1234").is_empty() && with("").is_empty());
        assert_eq!(
            with("kube-system"),
            ["metadata.annotations[provisioning.cattle.io/management-cluster-name]"]
        );
    }

    #[test]
    fn versions_that_are_only_unknown_today_are_stored() {
        let of = |version: &str| fields(&cluster("demo", version, pool("w", "LocalConfig", "w.1")));
        for version in [
            "v1.99.0+k3s1",
            "v1.34.1+rke2r1",
            "v1.34.1-rc1+k3s1",
            "v2.0.0+k3s99",
            "v1.34.1+k3s-1a2b3c4d",
            "v1.34.1+k3s1.sim",
        ] {
            assert!(of(version).is_empty(), "{version}");
        }
        for version in [
            "",
            "v9",
            "1.34",
            "v1.34.1",
            "1.34.1+k3s1",
            "v1.34.1+k3s",
            "v1.34.1+k3sX",
            "v1.34.1+rke2-",
            "v1.34.1+gke.1",
            "vv1.34.1+k3s1",
            "v1.34.1 +k3s1",
            "x",
        ] {
            assert_eq!(of(version), ["spec.kubernetesVersion"], "{version}");
        }
    }

    #[test]
    fn what_other_providers_make_is_theirs() {
        let mut foreign = pool("w", "banana", "w");
        foreign["machineConfigRef"]["apiVersion"] = json!("infrastructure.cluster.x-k8s.io/v1beta2");
        assert!(fields(&cluster("demo", "v1.34.1+k3s1", foreign)).is_empty());
        for kind in ["Amazonec2Config", "LocalConfig", "Config9Config"] {
            assert!(fields(&cluster("demo", "v1.34.1+k3s1", pool("w", kind, "w"))).is_empty(), "{kind}");
        }
        for kind in ["Config", "localConfig", "Local", "Lo calConfig", "Localconfig"] {
            assert_eq!(fields(&cluster("demo", "v1.34.1+k3s1", pool("w", kind, "w"))).len(), 1, "{kind}");
        }
        let imported: Cluster =
            serde_json::from_value(json!({"metadata": {"name": "bare", "namespace": "team"}, "spec": {}}))
                .unwrap();
        assert!(fields(&imported).is_empty());
    }
}
