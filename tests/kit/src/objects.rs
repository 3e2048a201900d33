//! Objects of any kind as JSON.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams, WatchEvent, WatchParams,
};
use serde_json::{Value, json};

use crate::SOON;

/// The objects of an API that may be restarted at any time.
pub struct Objects {
    client: Box<dyn Fn() -> Client + Send + Sync>,
}

impl Objects {
    /// `client` is called before every request.
    pub fn new(client: impl Fn() -> Client + Send + Sync + 'static) -> Self {
        Self { client: Box::new(client) }
    }

    /// The current client.
    pub fn client(&self) -> Client {
        (self.client)()
    }

    /// The kind in one namespace, or in all.
    pub fn api(&self, api_version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let resource = resource(api_version, kind);
        match namespace {
            "" => Api::all_with(self.client(), &resource),
            namespace => Api::namespaced_with(self.client(), namespace, &resource),
        }
    }

    /// All objects of a kind; none if the kind is not served.
    pub async fn list(&self, api_version: &str, kind: &str) -> Vec<Value> {
        let all = ListParams::default();
        let listed = answered(|| async { self.api(api_version, kind, "").list(&all).await }).await;
        listed.map(|list| list.items.into_iter().map(|item| json!(item)).collect()).unwrap_or_default()
    }

    pub async fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let found = answered(|| async { self.api(api_version, kind, namespace).get_opt(name).await }).await;
        found.unwrap().map(|object| json!(object))
    }

    /// Creates an object; an existing one is not changed.
    pub async fn create(&self, object: Value) {
        let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let dynamic: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let params = PostParams::default();
        let create = || async { self.api(api_version, kind, namespace).create(&params, &dynamic).await };
        match answered(create).await {
            // An earlier call may have succeeded without a response.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            other => drop(other.unwrap()),
        }
    }

    /// A merge patch.
    pub async fn merge(&self, api_version: &str, kind: &str, namespace: &str, name: &str, patch: Value) {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let merge = || async { self.api(api_version, kind, namespace).patch(name, &params, &patch).await };
        answered(merge).await.unwrap();
    }

    /// Deletes an object; a missing one is not an error.
    pub async fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str) {
        let params = DeleteParams::default();
        let delete = || async { self.api(api_version, kind, namespace).delete(name, &params).await };
        match answered(delete).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => drop(other.unwrap()),
        }
    }
}

impl Objects {
    /// Records at which revision objects of these kinds are deleted, from now on.
    pub async fn record_ends(&self, kinds: &[(&str, &str)]) -> Ends {
        let ends = Ends::default();
        for (api_version, kind) in kinds {
            let (api, kind) = (self.api(api_version, kind, ""), format!("{api_version} {kind}"));
            let now = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
            let (noted, watch) = (ends.0.clone(), WatchParams::default().timeout(290));
            tokio::spawn(async move {
                let mut events = api.watch(&watch, &now).await.unwrap().boxed();
                while let Some(Ok(event)) = events.next().await {
                    if let WatchEvent::Deleted(object) = event {
                        let revision = object.metadata.resource_version.unwrap().parse().unwrap();
                        noted.lock().unwrap().push((revision, kind.clone()));
                    }
                }
            });
        }
        ends
    }
}

impl Objects {
    /// Records every version of every object of a kind, from now on.
    pub async fn record(&self, api_version: &str, kind: &str) -> History {
        let (api, history) = (self.api(api_version, kind, ""), History::default());
        let now = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        let (noted, watch) = (history.0.clone(), WatchParams::default().timeout(290));
        tokio::spawn(async move {
            let mut events = api.watch(&watch, &now).await.unwrap().boxed();
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
                    noted.lock().unwrap().push(json!(object));
                }
            }
        });
        history
    }
}

/// See [`Objects::record`].
#[derive(Default)]
pub struct History(Arc<Mutex<Vec<Value>>>);

impl History {
    /// The first revision at which this was true.
    pub fn first(&self, is_so: impl Fn(&Value) -> bool) -> Option<u64> {
        let versions = self.0.lock().unwrap();
        let found = versions.iter().find(|object| is_so(object))?;
        Some(found["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap())
    }
}

/// See [`Objects::record_ends`].
#[derive(Default)]
pub struct Ends(Arc<Mutex<Vec<(u64, String)>>>);

impl Ends {
    /// The kinds, in the order in which the first object of each was deleted.
    pub fn order(&self) -> Vec<String> {
        let mut ends = self.0.lock().unwrap().clone();
        ends.sort();
        let mut order: Vec<String> = vec![];
        for (_, kind) in ends {
            if !order.contains(&kind) {
                order.push(kind);
            }
        }
        order
    }
}

/// The response of the API, even an error; a call without a response is repeated.
async fn answered<T, F>(mut call: impl FnMut() -> F) -> Result<T, kube::Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        match call().await {
            Ok(value) => return Ok(value),
            Err(error) if matches!(error, kube::Error::Api(_)) || tokio::time::Instant::now() > deadline => {
                return Err(error);
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let lower = kind.to_lowercase();
    let plural = match lower.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{lower}s"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &plural)
}

/// Status and message of a condition; empty if there is none.
pub fn condition(object: &Value, type_: &str) -> (String, String) {
    let list = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = list.into_iter().find(|condition| condition["type"] == type_).unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}
