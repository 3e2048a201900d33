//! Providers' kinds come and go with their CRDs.

use std::sync::Arc;
use std::sync::Mutex;

use drover_capi::external::Externals;
use drover_runtime::{Caches, ObjectKey};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::world::{World, eventually, provider_crd};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_whose_crd_is_deleted_and_created_again_is_watched_again() {
    let world = World::start().await;
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let externals = Externals::new(Caches::new(world.client.clone(), stop));
    externals.crds().synced().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    externals.on_change(move |value| log.lock().unwrap().push(value.to_owned()));
    let crds: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let crd = provider_crd("TestExtra");
    let name = crd.metadata.name.clone().unwrap();
    for object in ["first", "second"] {
        crds.create(&PostParams::default(), &crd).await.unwrap();
        let resolved = || externals.resolve("test.drover.io", "TestExtra");
        eventually("the kind is known", || async { resolved().is_ok() }).await;
        let resource = resolved().unwrap().0;
        eventually("the kind is listed", || async { externals.cache(&resource).await.is_ok() }).await;
        let made =
            json!({"apiVersion": resource.api_version, "kind": "TestExtra", "metadata": {"name": object}});
        let api = externals.api("default", &resource);
        api.create(&PostParams::default(), &serde_json::from_value(made).unwrap()).await.unwrap();
        eventually("the owner of the reference is reconciled", || async {
            seen.lock().unwrap().contains(&format!("test.drover.io/TestExtra/default/{object}"))
        })
        .await;
        let cache = externals.cache(&resource).await.unwrap();
        assert!(cache.get(&ObjectKey::new("default", object)).is_some());
        crds.delete(&name, &DeleteParams::default()).await.unwrap();
        eventually("the kind is gone", || async { resolved().is_err() }).await;
    }
}
