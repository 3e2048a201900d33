//! The core controllers on a real API server in memory, with a provider that lives in the test.

#![allow(clippy::unwrap_used)]

mod kinds;
mod world;

use drover_runtime::fault::{Fault, Plan};
use serde_json::{Value, json};
use world::{World, eventually};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const TEST: &str = "test.drover.io/v1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capi_checks_7_20_23_a_deployment_becomes_machines_and_everything_goes_in_order() {
    let world = World::start().await;
    let _manager = world.manager(None);
    let _provider = world.provider();
    world.cluster("one").await;
    world.deployment("one", 2, "infra").await;

    eventually("two Machines run and are available", || async {
        let deployment = world.get(CORE, "MachineDeployment", "one", "md").await.unwrap_or_default();
        deployment["status"]["availableReplicas"] == 2
    })
    .await;
    let machines = world.list(CORE, "Machine", "one").await;
    assert_eq!(machines.len(), 2);
    for machine in &machines {
        let name = machine["metadata"]["name"].as_str().unwrap();
        assert_eq!(machine["status"]["phase"], "Running", "{machine:#}");
        for kind in ["TestConfig", "TestMachine"] {
            let clone = world.get(TEST, kind, "one", name).await.unwrap();
            let owners = clone["metadata"]["ownerReferences"].as_array().unwrap();
            let shown: Vec<_> =
                owners.iter().map(|o| (o["kind"].as_str().unwrap(), o["controller"].as_bool())).collect();
            assert_eq!(shown, [("Machine", Some(true))]);
            let labels = &clone["metadata"]["labels"];
            assert_eq!(labels["cluster.x-k8s.io/cluster-name"], "demo");
            assert_eq!(labels["cluster.x-k8s.io/deployment-name"], "md");
            assert_eq!(
                labels["cluster.x-k8s.io/set-name"],
                machine["metadata"]["labels"]["cluster.x-k8s.io/set-name"]
            );
            let annotations = &clone["metadata"]["annotations"];
            assert_eq!(
                annotations["cluster.x-k8s.io/cloned-from-groupkind"],
                format!("{kind}Template.test.drover.io")
            );
        }
    }
    eventually("the Cluster is Available", || async {
        let cluster = world.get(CORE, "Cluster", "one", "demo").await.unwrap();
        condition(&cluster, "Available").0 == "True"
    })
    .await;
    world.idle().await;

    world.merge(CORE, "MachineDeployment", "one", "md", json!({ "spec": { "replicas": 1 } })).await;
    eventually("one Machine and its Node are gone", || async {
        world.list(CORE, "Machine", "one").await.len() == 1 && world.nodes().await.len() == 1
    })
    .await;

    world.delete(CORE, "Cluster", "one", "demo").await;
    eventually("everything is gone", || async {
        // The control plane must outlive the workers, and the infrastructure the control plane.
        let workers = world.list(CORE, "Machine", "one").await.len();
        let control_plane = world.get(TEST, "TestControlPlane", "one", "demo").await;
        let infra = world.get(TEST, "TestCluster", "one", "demo").await;
        assert!(workers == 0 || control_plane.is_some(), "the control plane went before the workers");
        assert!(
            control_plane.is_none() || infra.is_some(),
            "the infrastructure went before the control plane"
        );
        world.get(CORE, "Cluster", "one", "demo").await.is_none()
    })
    .await;
    for (version, kind) in
        [(TEST, "TestMachine"), (TEST, "TestConfig"), (CORE, "MachineSet"), (CORE, "MachineDeployment")]
    {
        assert_eq!(world.list(version, kind, "one").await.len(), 0, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capi_check_11_a_new_template_replaces_machines_one_by_one() {
    let world = World::start().await;
    let _manager = world.manager(None);
    let _provider = world.provider();
    world.cluster("roll").await;
    world.deployment("roll", 3, "infra").await;
    let available = || async {
        let machines = world.list(CORE, "Machine", "roll").await;
        machines.iter().filter(|machine| condition(machine, "Available").0 == "True").count()
    };
    eventually("three Machines are available", || async { available().await == 3 }).await;
    world.template("roll", "TestMachineTemplate", "infra-2", json!({ "size": 2 })).await;
    let change =
        json!({ "spec": { "template": { "spec": { "infrastructureRef": { "name": "infra-2" } } } } });
    world.merge(CORE, "MachineDeployment", "roll", "md", change).await;
    eventually("three Machines of the new template", || async {
        let machines = world.list(CORE, "Machine", "roll").await;
        assert!(machines.len() <= 4, "{} Machines", machines.len());
        // A Machine that is being deleted counts as available until its status is updated.
        let servers = world.list(TEST, "TestMachine", "roll").await;
        let new = servers.iter().filter(|server| server["spec"]["size"] == 2).count();
        new == 3 && servers.len() == 3 && available().await == 3
    })
    .await;
    eventually("the old set is gone", || async { world.list(CORE, "MachineSet", "roll").await.len() == 1 })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capi_check_8_a_refused_server_leaves_nothing_behind() {
    let world = World::start().await;
    let _manager = world.manager(None);
    world.cluster("refuse").await;
    // The CRD wants a number; the template has a word.
    world.template("refuse", "TestMachineTemplate", "infra", json!({ "size": "large" })).await;
    world.deployment("refuse", 1, "infra").await;
    eventually("the set says why", || async {
        let sets = world.list(CORE, "MachineSet", "refuse").await;
        sets.iter().any(|set| condition(set, "ScalingUp").1.contains("spec.size"))
    })
    .await;
    eventually("nothing is left of the attempts", || async {
        world.list(TEST, "TestConfig", "refuse").await.is_empty()
    })
    .await;
    assert!(world.list(CORE, "Machine", "refuse").await.is_empty());
    // However often it is tried, it is one event.
    let failed = |event: &&Value| event["reason"] == "FailedCreate";
    for attempt in 0..5 {
        let set = world.list(CORE, "MachineSet", "refuse").await.remove(0);
        let again = json!({ "metadata": { "annotations": { "attempt": attempt.to_string() } } });
        world.merge(CORE, "MachineSet", "refuse", set["metadata"]["name"].as_str().unwrap(), again).await;
    }
    world.idle().await;
    let reported: Vec<Value> = world.list("v1", "Event", "refuse").await;
    let reported: Vec<&Value> = reported.iter().filter(failed).collect();
    assert_eq!((reported.len(), reported[0]["count"].as_i64()), (1, Some(1)), "{reported:#?}");
    assert!(reported[0]["message"].as_str().unwrap().contains("spec.size"), "{reported:#?}");
}

/// This world's API has no hooks, as a kube-apiserver without our webhook has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_fills_in_or_refuses_the_controllers_do() {
    let world = World::start().await;
    let _manager = world.manager(None);
    let _provider = world.provider();
    world.cluster("bare").await;
    world.template("bare", "TestMachineTemplate", "infra", json!({ "size": 1 })).await;
    let reference =
        |kind: &str, name: &str| json!({ "apiGroup": "test.drover.io", "kind": kind, "name": name });
    let template = json!({
        "clusterName": "demo", "infrastructureRef": reference("TestMachineTemplate", "infra"),
        "bootstrap": { "configRef": reference("TestConfigTemplate", "boot") },
    });
    world
        .create(json!({
            "apiVersion": CORE, "kind": "MachineDeployment", "metadata": { "name": "md", "namespace": "bare" },
            "spec": { "clusterName": "demo", "selector": {}, "template": { "spec": template } },
        }))
        .await;
    eventually("one Machine runs", || async {
        let deployment = world.get(CORE, "MachineDeployment", "bare", "md").await.unwrap_or_default();
        deployment["status"]["availableReplicas"] == 1
    })
    .await;
    let machine = world.list(CORE, "Machine", "bare").await[0]["metadata"]["uid"].clone();

    let change = json!({ "spec": { "template": { "spec": { "clusterName": "other" } } } });
    world.merge(CORE, "MachineDeployment", "bare", "md", change).await;
    eventually("the deployment says what is wrong", || async {
        let deployment = world.get(CORE, "MachineDeployment", "bare", "md").await.unwrap_or_default();
        condition(&deployment, "RollingOut").1.contains("spec.template.spec.clusterName")
    })
    .await;
    world.idle().await;
    let machines = world.list(CORE, "Machine", "bare").await;
    assert_eq!((machines.len(), &machines[0]["metadata"]["uid"]), (1, &machine), "nothing is replaced");
    assert_eq!(world.list(CORE, "MachineSet", "bare").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_health_check_reports_that_it_has_no_effect() {
    let world = World::start().await;
    let _manager = world.manager(None);
    world.cluster("checked").await;
    world
        .create(json!({
            "apiVersion": CORE, "kind": "MachineHealthCheck", "metadata": { "name": "mine", "namespace": "checked" },
            "spec": { "clusterName": "demo", "selector": { "matchLabels": { "a": "b" } }, "checks": {
                "unhealthyNodeConditions": [{ "type": "Ready", "status": "False", "timeoutSeconds": 300 }],
            } },
        }))
        .await;
    eventually("its condition says so", || async {
        let check = world.get(CORE, "MachineHealthCheck", "checked", "mine").await.unwrap_or_default();
        let (status, message) = condition(&check, "RemediationAllowed");
        status == "False" && message.contains("without effect yet")
    })
    .await;
    world.idle().await;
    let reported: Vec<Value> = world.list("v1", "Event", "checked").await;
    let reported: Vec<&Value> =
        reported.iter().filter(|e| e["involvedObject"]["kind"] == "MachineHealthCheck").collect();
    assert_eq!(reported.len(), 1, "{reported:#?}");
    assert_eq!((&reported[0]["reason"], &reported[0]["type"]), (&json!("NotInEffect"), &json!("Warning")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capi_check_9_a_manager_killed_at_any_write_makes_no_machine_twice() {
    let world = World::start().await;
    for at in [1, 2, 3, 4, 5, 8, 13, 21, 34, 48, 61] {
        let namespace = format!("crash-{at}");
        world.cluster(&namespace).await;
        let fault = if at % 2 == 0 { Fault::Crash } else { Fault::CrashBefore };
        let plan = Plan::new(fault, at);
        let doomed = world.manager(Some(plan.clone()));
        world.deployment(&namespace, 20, "infra").await;
        eventually("the manager dies or is done", || async {
            plan.struck() || world.list(CORE, "Machine", &namespace).await.len() == 20
        })
        .await;
        doomed.stop().await;
        let manager = world.manager(None);
        eventually("twenty Machines and their objects", || async {
            let machines = world.list(CORE, "Machine", &namespace).await.len();
            assert!(machines <= 20, "{machines} Machines after a crash at write {at}");
            machines == 20
        })
        .await;
        world.idle().await;
        for (version, kind, count) in [
            (CORE, "Machine", 20),
            (TEST, "TestConfig", 20),
            (TEST, "TestMachine", 20),
            (CORE, "MachineSet", 1),
        ] {
            assert_eq!(
                world.list(version, kind, &namespace).await.len(),
                count,
                "{kind} after a crash at write {at}"
            );
        }
        manager.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_listed_is_not_taken_for_gone() {
    let world = World::start().await;
    let manager = world.manager(None);
    let _provider = world.provider();
    world.cluster("unlisted").await;
    world.deployment("unlisted", 1, "infra").await;
    eventually("a Machine runs", || async {
        let machines = world.list(CORE, "Machine", "unlisted").await;
        machines.iter().any(|machine| machine["status"]["phase"] == "Running")
    })
    .await;
    manager.stop().await;
    let name = world.list(CORE, "Machine", "unlisted").await[0]["metadata"]["name"].clone();
    let name = name.as_str().unwrap();
    world.delete(CORE, "Machine", "unlisted", name).await;

    let go_on = tokio_util::sync::CancellationToken::new();
    let _manager = world.manager_without_list("/testmachines", go_on.clone());
    eventually("the Machine says what is not known", || async {
        let machine = world.get(CORE, "Machine", "unlisted", name).await.unwrap();
        condition(&machine, "Deleting").1.contains("waiting for the list of all testmachines.test.drover.io")
    })
    .await;
    assert!(world.get(TEST, "TestMachine", "unlisted", name).await.is_some());
    go_on.cancel();
    eventually("the Machine goes, after its server", || async {
        let machine = world.get(CORE, "Machine", "unlisted", name).await;
        let server = world.get(TEST, "TestMachine", "unlisted", name).await;
        assert!(machine.is_some() || server.is_none(), "the Machine went before its server");
        machine.is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_any_write_leaves_no_machine_without_its_objects() {
    let world = World::start().await;
    for at in 1..=24 {
        let namespace = format!("lost-{at}");
        world.cluster(&namespace).await;
        let manager = world.manager(Some(Plan::new(Fault::AnswerLost, at)));
        world.deployment(&namespace, 2, "infra").await;
        let names = async |version: &str, kind: &str| {
            let list = world.list(version, kind, &namespace).await;
            let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
            list.iter().map(name).collect::<std::collections::BTreeSet<_>>()
        };
        eventually(&format!("two whole Machines after a lost answer to write {at}"), || async {
            let machines = names(CORE, "Machine").await;
            machines.len() == 2
                && machines == names(TEST, "TestConfig").await
                && machines == names(TEST, "TestMachine").await
        })
        .await;
        manager.stop().await;
    }
}

fn condition(object: &Value, type_: &str) -> (String, String) {
    let list = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = list.into_iter().find(|condition| condition["type"] == type_).unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}
