//! Numbered checks of provisioning.md about generation.

mod fixedpoint;

use std::sync::Arc;

use drover_api::capi::v1beta2::Machine;
use drover_api::provisioning::v1::{Cluster, ClusterStatus};
use drover_api::rke::v1::RKEControlPlane;
use jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::decide::Outcome;
use super::objects::{Generated, Sources, generate};
use super::pools::state::state_holders;
use super::scope::Scope;
use super::twin;
use super::waits::Refusal;

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

fn config(name: &str) -> Arc<DynamicObject> {
    let config = json!({"kind": "LocalConfig", "apiVersion": "v1", "metadata": {"name": name}, "cpus": "1"});
    Arc::new(serde_json::from_value(config).unwrap())
}

fn sources() -> Sources {
    let named = |name: &str| (("LocalConfig".to_owned(), name.to_owned()), config(name));
    Sources {
        management_name: "c-m-abcdefgh".into(),
        configs: [named("nc-cp"), named("nc-w")].into(),
        schemas: [("LocalConfig".to_owned(), vec!["cpus".to_owned()])].into(),
        versions: ["v1.34.1+k3s1".to_owned(), "v1.34.2+k3s1".to_owned()].into(),
        ..Sources::default()
    }
}

/// All objects, in the order in which they are written.
fn objects(generated: &Generated) -> Vec<Value> {
    let mut all = vec![
        json!(generated.rke_cluster),
        json!(generated.control_plane),
        json!(generated.cluster),
        json!(generated.bootstrap_template),
    ];
    for pool in &generated.pools {
        all.extend(pool.template.iter().map(|(template, _)| json!(template)));
        all.push(json!(pool.deployment));
        all.extend(pool.health_check.iter().map(|check| json!(check)));
    }
    all
}

fn kinds(generated: &Generated) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = objects(generated);
    all.iter().map(|o| format!("{} {}", text(&o["kind"]), text(&o["metadata"]["name"]))).collect()
}

fn object(generated: &Generated, kind: &str, name: &str) -> Value {
    let mut all = objects(generated).into_iter();
    all.find(|o| o["kind"] == kind && o["metadata"]["name"] == name).unwrap()
}

fn refusal(cluster: &Cluster, sources: &Sources) -> String {
    generate(cluster, sources).unwrap_err().to_string()
}

/// The status after a pass over a Cluster whose control plane is this one.
fn status(
    cluster: &Cluster,
    outcome: &Outcome,
    plane: Option<&RKEControlPlane>,
    connected: bool,
    now: &str,
) -> ClusterStatus {
    let twin = json!({
        "metadata": {"name": "c-m-abcdefgh"}, "spec": {},
        "status": {"conditions": [{"type": "Connected", "status": if connected { "True" } else { "False" }}]},
    });
    let mut scope = Scope { cluster: Arc::new(cluster.clone()), ..Scope::default() };
    scope.identity.id = "c-m-abcdefgh".into();
    scope.evidence.twin = Some(Arc::new(serde_json::from_value(twin).unwrap()));
    super::status::status(&scope, outcome, plane, None, now.parse::<Timestamp>().unwrap())
}

fn outcome(cluster: &Cluster, sources: &Sources) -> Outcome {
    generate(cluster, sources).map_or_else(Outcome::Refused, |_| Outcome::Generated)
}

const NOW: &str = "2026-01-01T00:00:00Z";

#[test]
fn provisioning_check_1_objects_of_a_cluster_with_two_pools() {
    let generated = generate(&cluster(), &sources()).unwrap();
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

    let twin = json!(twin::twin(&cluster(), "c-m-abcdefgh"));
    assert_eq!(twin["metadata"]["annotations"]["provisioning.cattle.io/administrated"], "true");
    assert!(twin["metadata"]["name"].as_str().unwrap().starts_with("c-m-"));
}

#[test]
fn generation_is_a_function() {
    assert_eq!(generate(&cluster(), &sources()), generate(&cluster(), &sources()));
}

#[test]
fn provisioning_check_8_bad_pools_are_named() {
    let with = |edit: fn(&mut Cluster)| {
        let mut cluster = cluster();
        edit(&mut cluster);
        refusal(&cluster, &sources())
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
    for name in ["h\u{e9}llo w", "A_B!", "-x", "a".repeat(64).as_str()] {
        let mut cluster = cluster();
        cluster.spec.rke_config.as_mut().unwrap().machine_pools[1].name = name.into();
        let message = refusal(&cluster, &sources());
        assert!(message.contains("machinePools[1]") && message.contains("name must be"), "{message}");
    }
    let message = with(|c| c.metadata.name = Some("c".repeat(100)));
    assert!(message.contains("metadata.name has 100 characters"), "{message}");
}

#[test]
fn a_second_server_is_refused_before_it_begins_a_cluster_of_its_own() {
    let mut more = cluster();
    more.spec.rke_config.as_mut().unwrap().machine_pools[0].quantity = Some(2);
    let message = refusal(&more, &sources());
    assert!(message.contains("2 machines have etcdRole or controlPlaneRole"), "{message}");
    assert!(message.contains("set quantity to 1"), "{message}");
}

#[test]
fn a_refused_change_of_a_running_cluster_shows_in_its_conditions() {
    let cluster = cluster();
    let plane: RKEControlPlane = serde_json::from_value(json!({
        "metadata": {"name": "demo"},
        "spec": {"clusterName": "demo", "kubernetesVersion": "v1.34.1+k3s1", "managementClusterName": "c-m-1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap();
    let refused = Outcome::Refused(Refusal::Spec(vec!["kubernetesVersion is not known".to_owned()]));
    let first = status(&cluster, &refused, Some(&plane), true, NOW);
    let condition = |type_: &str| {
        let found = first.conditions.iter().find(|c| c.type_ == type_).unwrap();
        (found.status.as_str(), found.message.as_str())
    };
    assert_eq!(condition("Ready"), ("True", "kubernetesVersion is not known"), "it runs on");
    assert_eq!(condition("Provisioned"), ("True", ""));
    for (type_, value) in [("Updated", "False"), ("Stalled", "True"), ("RKECluster", "False")] {
        assert_eq!(condition(type_), (value, "kubernetesVersion is not known"), "{type_}");
    }
    // Nothing moves while nothing changes.
    let shown = Cluster { status: Some(first.clone()), ..cluster };
    assert_eq!(status(&shown, &refused, Some(&plane), true, "2026-01-01T00:01:00Z"), first);
}

#[test]
fn provisioning_check_9_a_config_of_another_cluster_is_left_alone() {
    let mut sources = sources();
    let owned = sources.configs.get_mut(&("LocalConfig".to_owned(), "nc-w".to_owned())).unwrap();
    let owners = json!([{"apiVersion": "v1", "kind": "Cluster", "name": "other", "uid": "uid-2"}]);
    Arc::make_mut(owned).metadata.owner_references = serde_json::from_value(owners).unwrap();
    let message = refusal(&cluster(), &sources);
    assert_eq!(
        message,
        "spec.rkeConfig.machinePools[1] (w): machineConfigRef: LocalConfig default/nc-w is already owned by Cluster other"
    );
}

#[test]
fn provisioning_check_10_no_version_no_objects() {
    let mut cluster = cluster();
    cluster.spec.kubernetes_version.clear();
    assert_eq!(refusal(&cluster, &sources()), "spec.kubernetesVersion must not be empty");
}

#[test]
fn a_cluster_without_rke_config_says_that_it_is_not_imported_and_what_to_set() {
    let mut imported = cluster();
    imported.spec = Default::default();
    let status = status(&imported, &outcome(&imported, &sources()), None, false, NOW);
    for (type_, value) in [("RKECluster", "False"), ("Ready", "False"), ("Stalled", "True")] {
        let said = crate::conditions::get(&status.conditions, type_).unwrap();
        assert_eq!(said.status, value, "{type_}");
        for part in ["spec.rkeConfig is missing", "does not import", "set spec.kubernetesVersion"] {
            assert!(said.message.contains(part), "{type_}: {}", said.message);
        }
    }
    let reported = super::events::of_status(&imported, &status);
    assert!(
        reported.iter().any(|note| note.reason == "InvalidSpec" && note.type_ == "Warning"),
        "{reported:?}"
    );
    assert!(!reported.iter().any(|note| note.reason == "Accepted"), "{reported:?}");
    assert_eq!(super::log::message(&status).map(|(_, failed)| failed), Some(true));
}

#[test]
fn a_missing_role_is_told_beside_what_else_is_wrong() {
    let mut workers = cluster();
    let pools = &mut workers.spec.rke_config.as_mut().unwrap().machine_pools;
    pools.remove(0);
    assert!(generate(&workers, &sources()).is_ok(), "people may bring the control plane themselves");
    let mut sources = sources();
    sources.configs.clear();
    let message = refusal(&workers, &sources);
    assert!(message.contains("LocalConfig default/nc-w does not exist"), "{message}");
    assert!(message.contains("no pool with machines has etcdRole and controlPlaneRole, "), "{message}");
    assert!(message.contains("set etcdRole and controlPlaneRole to true in a pool"), "{message}");
    let mut none = cluster();
    none.spec.rke_config.as_mut().unwrap().machine_pools[1].quantity = Some(0);
    assert!(refusal(&none, &sources).contains("no pool with machines has workerRole, "));
    assert!(!refusal(&cluster(), &sources).contains("no pool with machines"));
}

#[test]
fn a_missing_config_or_driver_is_named() {
    let mut sources = sources();
    sources.configs.remove(&("LocalConfig".to_owned(), "nc-cp".to_owned()));
    assert_eq!(
        refusal(&cluster(), &sources),
        "spec.rkeConfig.machinePools[0] (cp): machineConfigRef: LocalConfig default/nc-cp does not exist"
    );
    sources.schemas.clear();
    let message = refusal(&cluster(), &sources);
    let driver = "machineConfigRef: no active node driver provides the kind LocalConfig";
    assert_eq!(message.matches(driver).count(), 2, "{message}");
}

#[test]
fn all_problems_are_reported_at_once_each_with_its_field() {
    let mut cluster = cluster();
    cluster.spec.kubernetes_version = "v9".into();
    let pools = &mut cluster.spec.rke_config.as_mut().unwrap().machine_pools;
    pools[0].machine_config_ref.name = Some("none".into());
    pools[1].worker_role = false;
    pools[1].drain_before_delete_timeout = Some("soon".into());
    pools[1].cloud_credential_secret_name = "keys".into();
    let mut nameless = pools[1].clone();
    (nameless.name, nameless.machine_config_ref.name) = (String::new(), None);
    pools.push(nameless);
    let message = refusal(&cluster, &sources());
    let reported: Vec<&str> = message.split("; ").collect();
    assert_eq!(
        reported,
        [
            "kubernetesVersion \"v9\" is not known: set spec.kubernetesVersion to one of v1.34.1+k3s1, v1.34.2+k3s1",
            "spec.rkeConfig.machinePools[1] (w): at least one of etcdRole, controlPlaneRole, workerRole must be true",
            "spec.rkeConfig.machinePools[1] (w): drainBeforeDeleteTimeout \"soon\" is not a duration like 10m",
            "spec.rkeConfig.machinePools[2]: name is missing",
            "spec.rkeConfig.machinePools[2]: at least one of etcdRole, controlPlaneRole, workerRole must be true",
            "spec.rkeConfig.machinePools[2]: machineConfigRef must name a machine config (kind and name)",
            "spec.rkeConfig.machinePools[2]: drainBeforeDeleteTimeout \"soon\" is not a duration like 10m",
            "spec.rkeConfig.machinePools[0] (cp): machineConfigRef: LocalConfig default/none does not exist",
            "spec.rkeConfig.machinePools[1] (w): cloudCredentialSecretName: Secret keys does not exist",
            "spec.rkeConfig.machinePools: no pool with machines has workerRole, without which the cluster does not start: set \
             workerRole to true in a pool with a quantity of at least 1, or register machines of your own with the role",
        ]
    );
    assert!(!message.contains('\n'));
}

#[test]
fn the_last_etcd_machine_of_a_cluster_that_ran_does_not_go_with_a_number() {
    let mut cluster = cluster();
    let pools = |cluster: &mut Cluster| cluster.spec.rke_config.as_mut().unwrap().machine_pools.clone();
    let ran = Sources { state_holders: ["cp".to_owned()].into(), ..sources() };
    assert!(generate(&cluster, &ran).is_ok());
    let mut none = pools(&mut cluster);
    none[0].quantity = Some(0);
    let mut renamed = pools(&mut cluster);
    renamed[0].name = "cp2".into();
    for left in [none.clone(), none[1..].to_vec(), renamed] {
        cluster.spec.rke_config.as_mut().unwrap().machine_pools = left;
        assert!(refusal(&cluster, &ran).contains("no machine with etcdRole would be left"));
        assert!(generate(&cluster, &sources()).is_ok(), "there is nothing to lose yet");
    }

    let plane = |bootstrapped: &str| -> RKEControlPlane {
        serde_json::from_value(json!({
            "metadata": {"name": "demo"},
            "spec": {"clusterName": "demo", "kubernetesVersion": "v1.34.1+k3s1", "managementClusterName": "c-m-1"},
            "status": {"conditions": [{"type": "Bootstrapped", "status": bootstrapped}]},
        }))
        .unwrap()
    };
    let machine = |labels: Value| -> Machine {
        serde_json::from_value(json!({
            "metadata": {"name": "m", "labels": labels},
            "spec": {"clusterName": "demo", "bootstrap": {}, "infrastructureRef": {"apiGroup": "g", "kind": "k", "name": "m"}},
        }))
        .unwrap()
    };
    let pooled =
        machine(json!({"rke.cattle.io/etcd-role": "true", "rke.cattle.io/rke-machine-pool-name": "cp"}));
    let custom = machine(json!({"rke.cattle.io/etcd-role": "true"}));
    let held = |plane: Option<&RKEControlPlane>, machines: &[&Machine]| {
        state_holders(plane, machines.iter().copied()).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(held(Some(&plane("True")), &[&pooled]), ["cp"]);
    assert!(held(Some(&plane("Unknown")), &[&pooled]).is_empty(), "it never ran");
    assert!(held(None, &[&pooled]).is_empty());
    assert!(held(Some(&plane("True")), &[&pooled, &custom]).is_empty(), "a custom machine holds it");
}

#[test]
fn provisioning_check_12_and_13_drain_and_health_check() {
    let mut cluster = cluster();
    let generated = generate(&cluster, &sources()).unwrap();
    let template = object(&generated, "MachineDeployment", "demo-w")["spec"]["template"].clone();
    assert_eq!(template["metadata"]["annotations"]["machine.cluster.x-k8s.io/exclude-node-draining"], "true");
    let pool = &mut cluster.spec.rke_config.as_mut().unwrap().machine_pools[1];
    pool.drain_before_delete = true;
    pool.drain_before_delete_timeout = Some("2m".into());
    pool.unhealthy_node_timeout = Some("5m".into());
    pool.max_unhealthy = Some("40%".into());
    let generated = generate(&cluster, &sources()).unwrap();
    let template = object(&generated, "MachineDeployment", "demo-w")["spec"]["template"].clone();
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
    cluster.spec.rke_config.as_mut().unwrap().machine_pools[1].machine_os = "windows".into();
    let first = status(&cluster, &outcome(&cluster, &sources()), None, false, NOW);
    let said = crate::conditions::get(&first.conditions, "ConfigAccepted").unwrap();
    assert!(said.status == "False" && said.message.contains("machinePools[1].machineOS"), "{}", said.message);
    assert!(said.message.contains("spec.rkeConfig.rotateCertificates"), "{}", said.message);
    let refused = Outcome::Refused(Refusal::Spec(vec!["something else is wrong".to_owned()]));
    let status = status(&cluster, &refused, None, false, NOW);
    let reported = crate::conditions::get(&status.conditions, "ConfigAccepted").unwrap();
    assert_eq!(reported.message, said.message, "beside what is wrong");
    let reported = super::events::of_status(&cluster, &status);
    assert!(
        reported.iter().any(|note| note.reason == "NotInEffect" && note.message == said.message),
        "{reported:?}"
    );
}

#[test]
fn a_cluster_tells_what_becomes_of_it_and_each_thing_once() {
    let plane = |ready: &str, message: &str| -> drover_api::rke::v1::RKEControlPlane {
        serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": "demo"},
            "spec": {"clusterName": "demo", "managementClusterName": "c-m-abcdefgh"},
            "status": {"conditions": [{"type": "Ready", "status": ready, "message": message}]},
        }))
        .unwrap()
    };
    let mut cluster = cluster();
    let mut step =
        |version: &str, plane: Option<drover_api::rke::v1::RKEControlPlane>, connected, wanted: &[&str]| {
            cluster.spec.kubernetes_version = version.into();
            let next = status(&cluster, &outcome(&cluster, &sources()), plane.as_ref(), connected, NOW);
            let reported = super::events::of_status(&cluster, &next);
            assert_eq!(reported.iter().map(|note| note.reason).collect::<Vec<_>>(), wanted, "{reported:?}");
            cluster.status = Some(next.clone());
            assert_eq!(super::events::of_status(&cluster, &next), [], "reported once");
            reported
        };
    let reported = step("v9", None, false, &["InvalidSpec"]);
    assert!(
        reported[0].message.contains("\"v9\" is not known") && reported[0].type_ == "Warning",
        "{reported:?}"
    );
    let good = "v1.34.1+k3s1";
    step(good, None, false, &["Accepted"]);
    step(good, Some(plane("Unknown", "waiting for viable init node")), false, &[]);
    step(good, Some(plane("Unknown", "waiting for probes")), true, &["Connected"]);
    step(good, Some(plane("True", "")), true, &["Ready"]);
    step(good, Some(plane("Unknown", "configuring worker node(s) w")), true, &["Reconciling"]);
    step(good, Some(plane("True", "")), true, &["Ready"]);
    step(good, Some(plane("False", "the state secret is missing")), true, &["Error"]);
}

#[test]
fn pools_that_come_change_and_go_are_told() {
    use super::events::{of_pool, pool_removed};
    let pool = cluster().spec.rke_config.unwrap().machine_pools.remove(1);
    let deployment = |applied: Option<&str>, replicas: i32| -> drover_api::capi::v1beta2::MachineDeployment {
        let notes = applied.map(|applied| json!({"drover.io/applied-quantity": applied}));
        let mut object = object(&generate(&cluster(), &sources()).unwrap(), "MachineDeployment", "demo-w");
        object["metadata"]["annotations"] = json!(notes);
        object["spec"]["replicas"] = json!(replicas);
        serde_json::from_value(object).unwrap()
    };
    assert_eq!(of_pool(None, &pool).unwrap().message, "Pool w gets 2 machine(s)");
    let reported = |applied, replicas| {
        of_pool(Some(&deployment(applied, replicas)), &pool).map(|note| note.message).unwrap_or_default()
    };
    assert_eq!(reported(None, 2), "", "just made");
    assert_eq!(reported(Some("2"), 2), "");
    assert_eq!(reported(Some("2"), 5), "", "scaled by another client: reported when the pool has followed");
    assert_eq!(reported(Some("4"), 4), "Pool w: 4 -> 2 machine(s)");
    let followed = "Pool w follows its MachineDeployment, which was scaled: 4 -> 2 machine(s)";
    assert_eq!(reported(Some("4"), 2), followed);
    let mut one = pool.clone();
    one.quantity = Some(1);
    assert_eq!(of_pool(Some(&deployment(Some(""), 1)), &one), None, "no quantity stood for one machine");
    assert_eq!(pool_removed("demo-x").reason, "PoolRemoved");
}

#[test]
fn a_removal_tells_its_steps() {
    use super::events::of_removal;
    use super::removal::decide::Step;
    use super::waits::{Blocked, MachineBlock};
    let mut cluster = cluster();
    let block = MachineBlock { name: "m1".into(), ..MachineBlock::default() };
    let waiting = Step::Wait(Blocked::Machines(vec![block]));
    assert_eq!(
        of_removal(&cluster, &Step::DeleteTwin, "c-m-x").unwrap().message,
        "deleting management cluster [c-m-x]"
    );
    assert_eq!(of_removal(&cluster, &waiting, "c-m-x").unwrap().reason, "Deleting");
    cluster.status = serde_json::from_value(json!({"conditions": [
        {"type": "Removed", "status": "Unknown", "message": "waiting for machine [m1] to delete"},
    ]}))
    .unwrap();
    assert_eq!(of_removal(&cluster, &waiting, "c-m-x"), None, "reported once");
    assert_eq!(of_removal(&cluster, &Step::Done, "c-m-x").unwrap().reason, "Deleted");
}
