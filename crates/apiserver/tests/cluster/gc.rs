//! Garbage collection (Checks of `kubernetes-api`).

use crate::harness::{Cluster, Setup, config_map, on_both, reopen, uid};
use drover_apiserver::controllers::ControllerOptions;
use drover_apiserver::resources::{Resource, ResourceDef};
use drover_apiserver::storage::{MemoryStorage, Range, SqliteStorage, Storage};
use drover_apiserver::strategy::Plain;
use serde_json::json;
use std::sync::Arc;

const MAPS: &str = "/api/v1/namespaces/a/configmaps";

async fn owner_with(cluster: &Cluster, dependents: usize) {
    cluster.namespace("a").await;
    let owner = cluster.post(MAPS, config_map("owner", &[])).await.expect(201);
    let uid = uid(&owner);
    let creates = (0..dependents).map(|i| {
        let uid = uid.clone();
        async move { cluster.post(MAPS, config_map(&format!("d{i}"), &[("owner", &uid)])).await.expect(201) }
    });
    futures::future::join_all(creates).await;
}

async fn dependents(cluster: &Cluster) -> Vec<serde_json::Value> {
    let list = cluster.get(MAPS).await.expect(200);
    let items = list["items"].as_array().unwrap().clone();
    items.into_iter().filter(|i| i["metadata"]["name"].as_str().unwrap().starts_with('d')).collect()
}

fn maps_of_a() -> Range<'static> {
    Range { group: "", resource: "configmaps", namespace: Some("a"), start: None }
}

#[tokio::test]
async fn kubernetes_check_16_finalizers_hold_an_object_until_the_last_is_removed() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        let mut object = config_map("x", &[]);
        object["metadata"]["finalizers"] = json!(["example.com/a"]);
        cluster.post(MAPS, object).await.expect(201);
        let path = format!("{MAPS}/x");
        let held = cluster.delete(&path, json!({})).await.expect(200);
        assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");
        let more = json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}});
        cluster.patch(&path, more).await.expect(422);
        cluster.patch(&path, json!({"metadata": {"finalizers": null}})).await.expect(200);
        cluster.get(&path).await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_17_a_wrong_uid_precondition_keeps_the_object() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        cluster.post(MAPS, config_map("x", &[])).await.expect(201);
        let path = format!("{MAPS}/x");
        cluster.delete(&path, json!({"preconditions": {"uid": "other"}})).await.expect(409);
        cluster.get(&path).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_18_background_removes_a_thousand_dependents() {
    on_both(|cluster| async move {
        owner_with(&cluster, 1_000).await;
        cluster
            .delete(&format!("{MAPS}/owner"), json!({"propagationPolicy": "Background"}))
            .await
            .expect(200);
        cluster.get(&format!("{MAPS}/owner")).await.expect(404);
        let started = std::time::Instant::now();
        // The root certificate is not collected.
        let index = cluster.storage.index();
        cluster.eventually("the cascade", || async { index.list(&maps_of_a()).0.len() <= 1 }).await;
        eprintln!("1000 dependents collected in {:?}", started.elapsed());
        assert!(dependents(&cluster).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_18_foreground_keeps_the_owner_until_its_dependents_are_gone() {
    on_both(|cluster| async move {
        owner_with(&cluster, 3).await;
        let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
        cluster.patch(&format!("{MAPS}/d1"), held).await.expect(200);
        let owner = format!("{MAPS}/owner");
        let waiting = cluster.delete(&owner, json!({"propagationPolicy": "Foreground"})).await.expect(200);
        assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));
        cluster.eventually("two of three", || async { dependents(&cluster).await.len() == 1 }).await;
        cluster.get(&owner).await.expect(200);
        let released = json!({"metadata": {"finalizers": null}});
        cluster.patch(&format!("{MAPS}/d1"), released).await.expect(200);
        cluster.gone(&owner).await;
        assert!(dependents(&cluster).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_18_orphan_strips_the_references() {
    on_both(|cluster| async move {
        owner_with(&cluster, 20).await;
        cluster.delete(&format!("{MAPS}/owner"), json!({"propagationPolicy": "Orphan"})).await.expect(200);
        cluster.gone(&format!("{MAPS}/owner")).await;
        let left = dependents(&cluster).await;
        assert_eq!(left.len(), 20);
        assert!(left.iter().all(|d| d["metadata"].get("ownerReferences").is_none()), "{:?}", left[0]);
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_19_objects_of_missing_owners_are_collected_unless_the_kind_is_not_served() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        cluster.post(MAPS, config_map("stray", &[("nobody", "no-such-uid")])).await.expect(201);
        let mut odd = config_map("odd", &[("w", "no-such-uid")]);
        odd["metadata"]["ownerReferences"][0]["apiVersion"] = "example.com/v1".into();
        odd["metadata"]["ownerReferences"][0]["kind"] = "Widget".into();
        cluster.post(MAPS, odd).await.expect(201);
        cluster.gone(&format!("{MAPS}/stray")).await;
        cluster.get(&format!("{MAPS}/odd")).await.expect(200);

        // Once the kind is served, it is certain that the owner does not exist.
        let def = ResourceDef {
            group: "example.com".into(),
            version: "v1".into(),
            plural: "widgets".into(),
            singular: "widget".into(),
            kind: "Widget".into(),
            list_kind: "WidgetList".into(),
            namespaced: true,
            verbs: vec!["get", "list", "create", "delete"],
            ..ResourceDef::default()
        };
        let widgets = Resource::new(def, Arc::new(Plain));
        cluster.server.objects().resources().change(|editor| editor.insert(widgets));
        cluster.gone(&format!("{MAPS}/odd")).await;
    })
    .await;
}

#[tokio::test]
async fn one_existing_owner_keeps_the_object_and_the_missing_one_is_removed() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        let keep = uid(&cluster.post(MAPS, config_map("keep", &[])).await.expect(201));
        let lose = uid(&cluster.post(MAPS, config_map("lose", &[])).await.expect(201));
        cluster.post(MAPS, config_map("d", &[("keep", &keep), ("lose", &lose)])).await.expect(201);
        cluster.delete(&format!("{MAPS}/lose"), json!({})).await.expect(200);
        cluster
            .eventually("the reference to the missing owner is removed", || async {
                let d = cluster.get(&format!("{MAPS}/d")).await.expect(200);
                d["metadata"]["ownerReferences"].as_array().unwrap().len() == 1
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn an_owner_in_another_namespace_does_not_count() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        cluster.namespace("b").await;
        let owner = uid(&cluster.post(MAPS, config_map("owner", &[])).await.expect(201));
        cluster
            .post("/api/v1/namespaces/b/configmaps", config_map("d", &[("owner", &owner)]))
            .await
            .expect(201);
        cluster.gone("/api/v1/namespaces/b/configmaps/d").await;
        let mut wide = json!({"metadata": {"name": "wide"}, "rules": []});
        wide["metadata"]["ownerReferences"] =
            config_map("x", &[("owner", &owner)])["metadata"]["ownerReferences"].clone();
        let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
        cluster.post(roles, wide).await.expect(201);
        cluster.gone(&format!("{roles}/wide")).await;
    })
    .await;
}

#[tokio::test]
async fn a_cycle_of_owners_does_not_block_foreground_deletion() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        let mut uids = Vec::new();
        for name in ["x", "y", "z"] {
            uids.push(uid(&cluster.post(MAPS, config_map(name, &[])).await.expect(201)));
        }
        for (name, owner, i) in [("x", "z", 2), ("y", "x", 0), ("z", "y", 1)] {
            let refs = config_map("", &[(owner, &uids[i])])["metadata"]["ownerReferences"].clone();
            cluster
                .patch(&format!("{MAPS}/{name}"), json!({"metadata": {"ownerReferences": refs}}))
                .await
                .expect(200);
        }
        cluster.delete(&format!("{MAPS}/x"), json!({"propagationPolicy": "Foreground"})).await.expect(200);
        for name in ["x", "y", "z"] {
            cluster.gone(&format!("{MAPS}/{name}")).await;
        }
    })
    .await;
}

/// Everything except garbage collection: the state after a crash.
async fn interrupted(storage: Arc<dyn Storage>) -> Cluster {
    let options = ControllerOptions { garbage_collection: false, ..ControllerOptions::default() };
    Setup { controllers: Some(options), ..Setup::new(storage) }.start().await
}

#[tokio::test]
async fn kubernetes_check_21_a_cascade_resumes_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    {
        let cluster = interrupted(Arc::new(SqliteStorage::open(dir.path()).unwrap())).await;
        owner_with(&cluster, 50).await;
        cluster
            .delete(&format!("{MAPS}/owner"), json!({"propagationPolicy": "Foreground"}))
            .await
            .expect(200);
        let other = uid(&cluster.post(MAPS, config_map("other", &[])).await.expect(201));
        cluster.post(MAPS, config_map("background", &[("other", &other)])).await.expect(201);
        cluster.delete(&format!("{MAPS}/other"), json!({})).await.expect(200);
        assert_eq!(dependents(&cluster).await.len(), 50);
        cluster.stop().await;
    }
    let cluster = Setup::new(reopen(dir.path()).await).start().await;
    cluster.gone(&format!("{MAPS}/owner")).await;
    cluster.gone(&format!("{MAPS}/background")).await;
    assert!(dependents(&cluster).await.is_empty());
}

#[tokio::test]
async fn a_cascade_works_in_virtual_time_and_idle_controllers_write_nothing() {
    let cluster = Setup::new(Arc::new(MemoryStorage::new())).start().await;
    owner_with(&cluster, 5).await;
    cluster
        .eventually("defaults", || async {
            cluster.get("/api/v1/namespaces/a/serviceaccounts/default").await.code == 200
        })
        .await;
    cluster.delete(&format!("{MAPS}/owner"), json!({})).await.expect(200);
    cluster.eventually("the cascade", || async { dependents(&cluster).await.is_empty() }).await;
    tokio::time::pause();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let before = cluster.storage.index().revision();
    tokio::time::sleep(std::time::Duration::from_secs(3_000)).await;
    assert_eq!(cluster.storage.index().revision(), before);
}

#[tokio::test]
async fn kubernetes_check_21_a_cascade_cut_off_in_the_middle_is_finished_by_the_next_server() {
    let dir = tempfile::tempdir().unwrap();
    {
        let cluster = Setup::new(reopen(dir.path()).await).start().await;
        owner_with(&cluster, 400).await;
        cluster
            .delete(&format!("{MAPS}/owner"), json!({"propagationPolicy": "Background"}))
            .await
            .expect(200);
        cluster.eventually("some are deleted", || async { dependents(&cluster).await.len() < 400 }).await;
        cluster.stop().await;
    }
    let cluster = Setup::new(reopen(dir.path()).await).start().await;
    cluster.eventually("the rest is deleted", || async { dependents(&cluster).await.is_empty() }).await;
}
