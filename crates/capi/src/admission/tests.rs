use serde_json::{Value, json};

use super::*;
use crate::fixtures::{cluster, deployment, machine, set};

fn paths(errors: &[FieldError]) -> Vec<&str> {
    errors.iter().map(|error| error.path.as_str()).collect()
}

fn valid_deployment(over: Value) -> drover_api::capi::v1beta2::MachineDeployment {
    let mut new = deployment(over);
    default_machine_deployment(&mut new, None);
    new
}

#[test]
fn defaults_are_those_of_upstream_webhooks() {
    let mut new = deployment(json!({ "spec": {
        "replicas": null, "selector": { "matchLabels": null }, "template": { "spec": { "version": "1.34.1+k3s1" } },
    } }));
    default_machine_deployment(&mut new, None);
    assert_eq!(new.spec.replicas, Some(1));
    assert_eq!(new.spec.template.spec.version.as_deref(), Some("v1.34.1+k3s1"));
    assert_eq!(new.spec.template.spec.deletion.as_ref().unwrap().node_deletion_timeout_seconds, Some(10));
    let selector = new.spec.selector.match_labels.clone().unwrap();
    assert_eq!(selector["cluster.x-k8s.io/deployment-name"], "md");
    assert_eq!(selector["cluster.x-k8s.io/cluster-name"], "demo");
    assert_eq!(new.metadata.labels.as_ref().unwrap()["cluster.x-k8s.io/cluster-name"], "demo");
    let strategy = new.spec.rollout.clone().unwrap().strategy.unwrap();
    assert_eq!(strategy.type_, "RollingUpdate");
    assert_eq!(
        serde_json::to_value(strategy.rolling_update).unwrap(),
        json!({ "maxSurge": 1, "maxUnavailable": 0 })
    );
    assert_eq!(validate_machine_deployment(&new, None), []);
    let once = new.clone();
    default_machine_deployment(&mut new, Some(&once));
    assert_eq!(new, once, "defaulting twice changes nothing");
}

#[test]
fn replicas_follow_the_autoscalers_bounds() {
    let bounded = |replicas: Value| {
        deployment(json!({
            "metadata": { "annotations": {
                "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "2",
                "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "4",
            } },
            "spec": { "replicas": replicas },
        }))
    };
    let defaulted = |old: Option<i32>| {
        let mut new = bounded(Value::Null);
        let old = old.map(|old| bounded(json!(old)));
        default_machine_deployment(&mut new, old.as_ref());
        new.spec.replicas
    };
    assert_eq!(
        (defaulted(None), defaulted(Some(1)), defaulted(Some(3)), defaulted(Some(9))),
        (Some(2), Some(2), Some(3), Some(4))
    );
}

#[test]
fn capi_check_34_bad_input_is_refused_with_a_field_path() {
    let old = valid_deployment(json!({}));
    let moved = valid_deployment(
        json!({ "spec": { "clusterName": "other", "template": { "spec": { "clusterName": "other" } } } }),
    );
    assert_eq!(paths(&validate_machine_deployment(&moved, Some(&old))), ["spec.clusterName"]);
    let rolling = |surge: Value, unavailable: Value| {
        json!({ "spec": { "rollout": { "strategy": {
            "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable },
        } } } })
    };
    for (over, path) in [
        (
            json!({ "spec": { "template": { "spec": { "clusterName": "other" } } } }),
            "spec.template.spec.clusterName",
        ),
        (
            json!({ "spec": { "template": { "metadata": { "labels": { "pool": "none" } } } } }),
            "spec.template.metadata.labels",
        ),
        (json!({ "spec": { "template": { "spec": { "version": "1.2" } } } }), "spec.template.spec.version"),
        (
            json!({ "spec": { "template": { "spec": { "bootstrap": { "configRef": null } } } } }),
            "spec.template.spec.bootstrap",
        ),
        (rolling(json!(0), json!(0)), "spec.rollout.strategy.rollingUpdate.maxUnavailable"),
        (rolling(json!("a lot"), json!(0)), "spec.rollout.strategy.rollingUpdate.maxSurge"),
        (
            json!({ "spec": { "machineNaming": { "template": "{{ .machineSet.name }}" } } }),
            "spec.machineNaming.template",
        ),
        (json!({ "metadata": { "name": "x".repeat(64) } }), "metadata.name"),
        (
            json!({ "metadata": { "annotations": { "machineset.cluster.x-k8s.io/skip-preflight-checks": "Nope" } } }),
            "metadata.annotations[machineset.cluster.x-k8s.io/skip-preflight-checks]",
        ),
        (
            json!({ "spec": { "template": { "spec": { "taints": [
                { "key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule", "propagation": "Always" },
            ] } } } }),
            "spec.template.spec.taints[0].key",
        ),
    ] {
        assert_eq!(
            paths(&validate_machine_deployment(&valid_deployment(over.clone()), None)),
            [path],
            "{over}"
        );
    }
}

#[test]
fn sets_machines_and_clusters_are_validated_alike() {
    let mut new = set("set", json!({}));
    default_machine_set(&mut new, None);
    assert_eq!(validate_machine_set(&new, None), []);
    let mut new = machine("m", json!({ "spec": { "version": "1.2" } }));
    default_machine(&mut new);
    assert_eq!(paths(&validate_machine(&new, None)), ["spec.version"]);
    let good = cluster(
        json!({ "spec": { "clusterNetwork": { "pods": { "cidrBlocks": ["10.0.0.0/8", "fd00::/48"] } } } }),
    );
    assert_eq!(validate_cluster(&good, None), []);
    let bad = cluster(json!({ "spec": {
        "infrastructureRef": null, "controlPlaneRef": null, "clusterNetwork": { "pods": { "cidrBlocks": ["10.0.0.0/99"] } },
    } }));
    let errors = validate_cluster(&bad, Some(&good));
    assert_eq!(
        paths(&errors),
        ["spec", "spec.infrastructureRef", "spec.controlPlaneRef", "spec.clusterNetwork.pods.cidrBlocks[0]"]
    );
}

#[test]
fn a_start_up_timeout_of_ten_seconds_is_refused() {
    let check = |seconds: Value| -> drover_api::capi::v1beta2::MachineHealthCheck {
        let mut new = serde_json::from_value(json!({
            "metadata": { "name": "mhc" },
            "spec": {
                "clusterName": "demo", "selector": { "matchLabels": { "a": "b" } },
                "checks": { "nodeStartupTimeoutSeconds": seconds },
            },
        }))
        .unwrap();
        default_machine_health_check(&mut new);
        new
    };
    assert_eq!(
        paths(&validate_machine_health_check(&check(json!(10)), None)),
        ["spec.checks.nodeStartupTimeoutSeconds"]
    );
    assert_eq!(validate_machine_health_check(&check(json!(0)), None), []);
    assert_eq!(check(Value::Null).spec.checks.unwrap().node_startup_timeout_seconds, Some(600));
}

#[test]
fn fields_without_effect_give_a_warning_with_their_path() {
    let taints = json!([{"key": "k", "effect": "NoSchedule", "propagation": "Always"}]);
    let machine = json!({"spec": {"taints": taints}});
    let set = json!({"spec": {"template": {"spec": {"taints": taints}}}});
    for (kind, object, path) in [
        ("Machine", &machine, "spec.taints"),
        ("MachineSet", &set, "spec.template.spec.taints"),
        ("MachineDeployment", &set, "spec.template.spec.taints"),
        ("Cluster", &json!({"spec": {"topology": {"version": "v1"}}}), "spec.topology"),
    ] {
        let warning = without_effect(kind, object).unwrap();
        assert!(warning.starts_with(path) && warning.contains("stored, but"), "{warning}");
        assert_eq!(without_effect(kind, &json!({"spec": {"taints": [], "topology": null}})), None);
    }
}
