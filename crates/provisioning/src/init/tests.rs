//! Numbered checks of provisioning.md about generation.

use drover_api::provisioning::v1::Cluster;
use serde_json::{Value, json};

use super::generate::{GenerateError, Generated, Surroundings, generate};
use super::twin;

fn cluster() -> Cluster {
    serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "demo", "uid": "uid-1", "generation": 1},
        "spec": {
            "kubernetesVersion": "v1.34.1+k3s1",
            "rkeConfig": {"machinePools": [
                {"name": "cp", "quantity": 1, "etcdRole": true, "controlPlaneRole": true,
                 "machineConfigRef": {"kind": "LocalConfig", "name": "nc-cp"}},
                {"name": "w", "quantity": 2, "workerRole": true, "labels": {"tier": "gold"},
                 "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
                 "machineConfigRef": {"kind": "LocalConfig", "name": "nc-w"}},
            ]},
        },
    }))
    .unwrap()
}

fn surroundings() -> Surroundings {
    let config = |name: &str| {
        let key = ("LocalConfig".to_owned(), name.to_owned());
        (key, json!({"kind": "LocalConfig", "metadata": {"name": name}, "cpus": "1"}))
    };
    Surroundings {
        management_name: "c-m-abcdefgh".into(),
        configs: [config("nc-cp"), config("nc-w")].into(),
        schemas: [("LocalConfig".to_owned(), vec!["cpus".to_owned()])].into(),
        credentials: Default::default(),
    }
}

fn kinds(generated: &Generated) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    generated
        .objects
        .iter()
        .map(|o| format!("{} {}", text(&o["kind"]), text(&o["metadata"]["name"])))
        .collect()
}

fn object<'a>(generated: &'a Generated, kind: &str, name: &str) -> &'a Value {
    generated.objects.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name).unwrap()
}

fn refusal(cluster: &Cluster, around: &Surroundings) -> String {
    match generate(cluster, around) {
        Err(GenerateError::Invalid(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn provisioning_check_1_objects_of_a_cluster_with_two_pools() {
    let generated = generate(&cluster(), &surroundings()).unwrap();
    let names = kinds(&generated);
    let expected = [
        "RKECluster demo",
        "RKEControlPlane demo",
        "Cluster demo",
        "RKEBootstrapTemplate demo-bootstrap-template",
    ];
    assert_eq!(names[..4], expected);
    assert!(
        names[4].starts_with("LocalMachineTemplate demo-cp-")
            && names[6].starts_with("LocalMachineTemplate demo-w-")
    );
    assert_eq!(
        (names[5].as_str(), names[7].as_str(), names.len()),
        ("MachineDeployment demo-cp", "MachineDeployment demo-w", 8)
    );

    let deployment = object(&generated, "MachineDeployment", "demo-w");
    let template = &deployment["spec"]["template"];
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(template["metadata"]["labels"]["rke.cattle.io/worker-role"], "true");
    assert_eq!(template["metadata"]["annotations"]["rke.cattle.io/labels"], r#"{"tier":"gold"}"#);
    assert_eq!(
        template["metadata"]["annotations"]["rke.cattle.io/taints"],
        r#"[{"effect":"NoSchedule","key":"k","value":"v"}]"#
    );
    let infrastructure = template["spec"]["infrastructureRef"]["name"].as_str().unwrap();
    assert!(names.contains(&format!("LocalMachineTemplate {infrastructure}")));
    let control_plane = object(&generated, "RKEControlPlane", "demo");
    assert_eq!(control_plane["spec"]["managementClusterName"], "c-m-abcdefgh");

    let twin = twin::objects(&cluster()).remove(0);
    assert_eq!(twin["metadata"]["annotations"]["provisioning.cattle.io/administrated"], "true");
    assert!(twin["metadata"]["name"].as_str().unwrap().starts_with("c-m-"));
}

#[test]
fn generation_is_a_function() {
    assert_eq!(generate(&cluster(), &surroundings()), generate(&cluster(), &surroundings()));
}

#[test]
fn provisioning_check_8_bad_pools_are_named() {
    let with = |edit: fn(&mut Cluster)| {
        let mut cluster = cluster();
        edit(&mut cluster);
        refusal(&cluster, &surroundings())
    };
    let message = with(|c| c.spec.rke_config.as_mut().unwrap().machine_pools[1].worker_role = false);
    assert!(message.contains("machinePools[1] (w)") && message.contains("workerRole"), "{message}");
    let message = with(|c| c.spec.rke_config.as_mut().unwrap().machine_pools[1].name = "cp".into());
    assert!(message.contains("(cp): there is another pool of that name"), "{message}");
    let message =
        with(|c| c.spec.rke_config.as_mut().unwrap().machine_pools[0].machine_config_ref.name = None);
    assert!(message.contains("(cp): machineConfigRef"), "{message}");
    let message = with(|c| {
        let pool = &mut c.spec.rke_config.as_mut().unwrap().machine_pools[0];
        pool.labels.insert("rke.cattle.io/etcd-role".into(), "false".into());
    });
    assert!(message.contains("label rke.cattle.io/etcd-role"), "{message}");
}

#[test]
fn provisioning_check_9_a_config_of_another_cluster_is_left_alone() {
    let mut around = surroundings();
    let owned = around.configs.get_mut(&("LocalConfig".to_owned(), "nc-w".to_owned())).unwrap();
    owned["metadata"]["ownerReferences"] = json!([{"kind": "Cluster", "name": "other", "uid": "uid-2"}]);
    let message = refusal(&cluster(), &around);
    assert_eq!(message, "machine pool w: LocalConfig default/nc-w is already owned by Cluster other");
}

#[test]
fn provisioning_check_10_no_version_no_objects() {
    let mut cluster = cluster();
    cluster.spec.kubernetes_version.clear();
    assert_eq!(refusal(&cluster, &surroundings()), "spec.kubernetesVersion must not be empty");
}

#[test]
fn a_missing_config_or_driver_is_named() {
    let mut around = surroundings();
    around.configs.clear();
    assert_eq!(refusal(&cluster(), &around), "machine pool cp: LocalConfig default/nc-cp does not exist");
    around.schemas.clear();
    assert_eq!(
        refusal(&cluster(), &around),
        "machine pool cp: no active node driver provides the kind LocalConfig"
    );
}

#[test]
fn provisioning_check_12_and_13_drain_and_health_check() {
    let mut cluster = cluster();
    let generated = generate(&cluster, &surroundings()).unwrap();
    let template = &object(&generated, "MachineDeployment", "demo-w")["spec"]["template"];
    assert_eq!(template["metadata"]["annotations"]["machine.cluster.x-k8s.io/exclude-node-draining"], "true");
    let pool = &mut cluster.spec.rke_config.as_mut().unwrap().machine_pools[1];
    pool.drain_before_delete = true;
    pool.drain_before_delete_timeout = Some("2m".into());
    pool.unhealthy_node_timeout = Some("5m".into());
    pool.max_unhealthy = Some("40%".into());
    let generated = generate(&cluster, &surroundings()).unwrap();
    let template = &object(&generated, "MachineDeployment", "demo-w")["spec"]["template"];
    assert!(
        template["metadata"]["annotations"].get("machine.cluster.x-k8s.io/exclude-node-draining").is_none()
    );
    assert_eq!(template["spec"]["deletion"]["nodeDrainTimeoutSeconds"], 120);
    let check = object(&generated, "MachineHealthCheck", "demo-w");
    assert_eq!(check["spec"]["checks"]["unhealthyNodeConditions"][0]["timeoutSeconds"], 300);
    assert_eq!(check["spec"]["checks"]["nodeStartupTimeoutSeconds"], 600);
    assert_eq!(check["spec"]["remediation"]["triggerIf"]["unhealthyLessThanOrEqualTo"], "40%");
}

#[test]
fn what_is_not_implemented_is_reported() {
    let mut cluster = cluster();
    let config = cluster.spec.rke_config.as_mut().unwrap();
    config.rotate_certificates = serde_json::from_value(json!({"generation": 1})).unwrap();
    let generated = generate(&cluster, &surroundings()).unwrap();
    assert_eq!(generated.unsupported, ["spec.rkeConfig.rotateCertificates"]);
}
