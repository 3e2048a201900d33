//! Namespaces and their default objects (Checks of `kubernetes-api`).

use crate::harness::{Cluster, Setup, admin, config_map, on_both, reopen};
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::clock::TokioClock;
use drover_apiserver::controllers::{ControllerOptions, KubernetesService};
use drover_apiserver::storage::{MemoryStorage, Retention, SqliteStorage, Storage};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const NS: &str = "/api/v1/namespaces";

#[tokio::test]
async fn namespaces_exist_from_the_start_and_three_cannot_be_deleted() {
    on_both(|cluster| async move {
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            let ns = cluster.get(&format!("{NS}/{name}")).await.expect(200);
            assert_eq!(ns["metadata"]["labels"]["kubernetes.io/metadata.name"], name);
            assert_eq!(ns["spec"]["finalizers"], json!(["kubernetes"]));
            assert_eq!(ns["status"]["phase"], "Active");
        }
        for name in ["default", "kube-system", "kube-public"] {
            let refused = cluster.delete(&format!("{NS}/{name}"), json!({})).await.expect(403);
            assert_eq!(
                refused["message"],
                format!("namespaces {name:?} is forbidden: this namespace may not be deleted")
            );
        }
    })
    .await;
}

#[tokio::test]
async fn each_namespace_has_an_account_and_the_root_certificate_which_are_restored() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        let (account, ca) =
            (format!("{NS}/a/serviceaccounts/default"), format!("{NS}/a/configmaps/kube-root-ca.crt"));
        for path in [&account, &ca] {
            cluster.eventually(path, || async { cluster.get(path).await.code == 200 }).await;
            let before = cluster.get(path).await.expect(200)["metadata"]["uid"].clone();
            cluster.delete(path, json!({})).await.expect(200);
            cluster
                .eventually("it is recreated", || async {
                    let again = cluster.get(path).await;
                    again.code == 200 && again.body["metadata"]["uid"] != before
                })
                .await;
        }
        cluster.patch(&ca, json!({"data": {"ca.crt": "junk"}})).await.expect(200);
        let pem = cluster.pki.ca_pem().to_owned();
        cluster
            .eventually("it is corrected", || async { cluster.get(&ca).await.body["data"]["ca.crt"] == pem })
            .await;
    })
    .await;
}

#[tokio::test]
async fn writes_need_a_namespace_that_exists() {
    on_both(|cluster| async move {
        let refused =
            cluster.post(&format!("{NS}/nowhere/configmaps"), config_map("x", &[])).await.expect(404);
        assert_eq!(refused["message"], "namespaces \"nowhere\" not found");
    })
    .await;
}

#[tokio::test]
async fn a_namespace_is_deleted_with_its_content_and_can_be_recreated() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        for i in 0..300 {
            cluster.post(&format!("{NS}/a/configmaps"), config_map(&format!("c{i}"), &[])).await.expect(201);
        }
        let going = cluster.delete(&format!("{NS}/a"), json!({})).await.expect(200);
        assert_eq!(going["status"]["phase"], "Terminating", "{going}");
        cluster.gone(&format!("{NS}/a")).await;
        let left = cluster.get("/api/v1/configmaps").await.expect(200);
        assert!(left["items"].as_array().unwrap().iter().all(|i| i["metadata"]["namespace"] != "a"));
        cluster.namespace("a").await;
        cluster
            .eventually("defaults", || async {
                cluster.get(&format!("{NS}/a/serviceaccounts/default")).await.code == 200
            })
            .await;
    })
    .await;
}

fn condition<'a>(namespace: &'a Value, kind: &str) -> &'a Value {
    let all = namespace["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|c| c["type"] == kind)).unwrap_or(&Value::Null)
}

async fn with_stuck_object(cluster: &Cluster) {
    cluster.namespace("a").await;
    let mut stuck = config_map("stuck", &[]);
    stuck["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(&format!("{NS}/a/configmaps"), stuck).await.expect(201);
    cluster.post(&format!("{NS}/a/configmaps"), config_map("free", &[])).await.expect(201);
    cluster.delete(&format!("{NS}/a"), json!({})).await.expect(200);
}

#[tokio::test]
async fn kubernetes_check_20_a_stuck_object_is_reported_and_its_release_ends_the_namespace() {
    on_both(|cluster| async move {
        with_stuck_object(&cluster).await;
        let path = format!("{NS}/a");
        cluster
            .eventually("the condition", || async {
                let ns = cluster.get(&path).await.body;
                condition(&ns, "NamespaceFinalizersRemaining")["status"] == "True"
                    && condition(&ns, "NamespaceContentRemaining")["message"]
                        == "Some resources are remaining: configmaps has 1 resource instances (configmaps/stuck)"
            })
            .await;
        let ns = cluster.get(&path).await.expect(200);
        let message = condition(&ns, "NamespaceFinalizersRemaining")["message"].as_str().unwrap().to_owned();
        assert!(message.contains("example.com/hold in 1 resource instances (configmaps/stuck)"), "{message}");

        let refused = cluster.post(&format!("{NS}/a/configmaps"), config_map("late", &[])).await.expect(403);
        assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
        assert_eq!(
            refused["message"],
            "configmaps \"late\" is forbidden: unable to create new content in namespace a because it is being terminated"
        );
        let released = json!({"metadata": {"finalizers": null}});
        cluster.patch(&format!("{NS}/a/configmaps/stuck"), released).await.expect(200);
        cluster.gone(&path).await;
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_21_namespace_deletion_resumes_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    {
        let storage: Arc<dyn Storage> = Arc::new(SqliteStorage::open(dir.path()).unwrap());
        let whole = Setup::new(storage.clone()).start().await;
        whole.namespace("a").await;
        whole.post(&format!("{NS}/a/configmaps"), config_map("x", &[])).await.expect(201);
        whole.stop().await;
        // As after a kill: the controllers have stopped, and the deletion is recorded.
        let bare = Setup { controllers: None, ..Setup::new(storage) }.start().await;
        bare.delete(&format!("{NS}/a"), json!({})).await.expect(200);
        bare.get(&format!("{NS}/a/configmaps/x")).await.expect(200);
        bare.stop().await;
    }
    let cluster = Setup::new(reopen(dir.path()).await).start().await;
    cluster.gone(&format!("{NS}/a")).await;
}

#[tokio::test]
async fn only_finalize_changes_the_finalizers_of_a_namespace() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        let path = format!("{NS}/a");
        let kept = cluster.patch(&path, json!({"spec": {"finalizers": ["example.com/x"]}})).await.expect(200);
        assert_eq!(
            kept["spec"]["finalizers"],
            json!(["kubernetes"]),
            "the main endpoint does not change them"
        );
        let mut ns = cluster.get(&path).await.expect(200);
        ns["spec"]["finalizers"] = json!(["kubernetes", "example.com/x"]);
        let put =
            cluster.call(Some(admin()), "PUT", &format!("{path}/finalize"), Some(&ns)).await.expect(200);
        assert_eq!(put["spec"]["finalizers"], json!(["kubernetes", "example.com/x"]));
        cluster.delete(&path, json!({})).await.expect(200);
        cluster
            .eventually("only the other finalizer", || async {
                cluster.get(&path).await.body["spec"]["finalizers"] == json!(["example.com/x"])
            })
            .await;
        let mut ns = cluster.get(&path).await.expect(200);
        ns["spec"]["finalizers"] = json!([]);
        cluster.call(Some(admin()), "PUT", &format!("{path}/finalize"), Some(&ns)).await.expect(200);
        cluster.gone(&path).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn events_expire_an_hour_after_their_last_write_in_virtual_time() {
    let clock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()));
    let storage = Arc::new(MemoryStorage::with(clock.clone(), Retention::default()));
    let cluster = Setup { clock, ..Setup::new(storage) }.start().await;
    let events = format!("{NS}/default/events");
    let event = |name: &str| {
        json!({"metadata": {"name": name}, "reason": "Seen", "type": "Normal",
        "involvedObject": {"kind": "Namespace", "name": "default", "namespace": "default"}})
    };
    for name in ["old", "renewed"] {
        cluster.post(&events, event(name)).await.expect(201);
    }
    tokio::time::sleep(Duration::from_secs(30 * 60)).await;
    cluster.patch(&format!("{events}/renewed"), json!({"count": 2})).await.expect(200);
    tokio::time::sleep(Duration::from_secs(29 * 60)).await;
    cluster.get(&format!("{events}/old")).await.expect(200);
    tokio::time::sleep(Duration::from_secs(2 * 60)).await;
    cluster.get(&format!("{events}/old")).await.expect(404);
    cluster.get(&format!("{events}/renewed")).await.expect(200);
    tokio::time::sleep(Duration::from_secs(30 * 60)).await;
    cluster.get(&format!("{events}/renewed")).await.expect(404);
}

#[tokio::test]
async fn the_kubernetes_service_points_at_the_server_and_follows_it() {
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let pki = Arc::new(Pki::in_memory(Timestamp::now()).unwrap());
    let start = |port: u16, storage: Arc<dyn Storage>| {
        let service = KubernetesService {
            advertise: format!("192.0.2.1:{port}").parse().unwrap(),
            cluster_ip: "10.43.0.1".parse().unwrap(),
        };
        let options = ControllerOptions { kubernetes_service: Some(service), ..ControllerOptions::default() };
        Setup { controllers: Some(options), pki: Some(pki.clone()), ..Setup::new(storage) }.start()
    };
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let cluster = start(6443, storage.clone()).await;
    let service = cluster.get(&format!("{NS}/default/services/kubernetes")).await.expect(200);
    assert_eq!(service["spec"]["clusterIP"], "10.43.0.1");
    assert_eq!(cluster.get(slice).await.expect(200)["ports"][0]["port"], 6443);
    cluster.stop().await;
    let cluster = start(8443, storage.clone()).await;
    assert_eq!(cluster.get(slice).await.expect(200)["ports"][0]["port"], 8443);
    for path in [slice.to_owned(), format!("{NS}/default/services/kubernetes")] {
        cluster.delete(&path, json!({})).await.expect(200);
        cluster.eventually("it is recreated", || async { cluster.get(&path).await.code == 200 }).await;
    }
    cluster.stop().await;
    let before = storage.index().revision();
    let cluster = start(8443, storage.clone()).await;
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    assert_eq!(storage.index().revision(), before, "nothing to correct, nothing written");
    cluster.stop().await;
}
