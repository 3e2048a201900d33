//! The manifests folder: applies its files, and deletes objects that are removed from a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{self, Scope};
use kube::{Client, ResourceExt};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::net::unix::pipe::Receiver;
use tokio_util::sync::CancellationToken;

const MANAGER: &str = "deploy@sim";
/// For lost events, and for files that could not be applied.
const RESCAN: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_millis(500);

/// An object that was applied from a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Applied {
    #[serde(rename = "apiVersion")]
    api_version: String,
    kind: String,
    namespace: Option<String>,
    name: String,
}

/// Applies the folder until `stop` is cancelled.
pub async fn run(client: Client, dir: PathBuf, stop: CancellationToken) {
    let mut seen: BTreeMap<PathBuf, (SystemTime, u64)> = BTreeMap::new();
    let events = watch(&dir);
    let work = async {
        loop {
            let failed = pass(&client, &dir, &mut seen).await;
            let wait = if failed { RETRY } else { RESCAN };
            let changed = async {
                match &events {
                    Ok(events) => next(events).await,
                    Err(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = stop.clone().cancelled_owned() => {}
    }
}

fn watch(dir: &Path) -> Result<Receiver, std::io::Error> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let flags = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
    // The two folders that are used. Files in other folders are found by the next scan.
    for dir in [dir.to_owned(), dir.join("rancher")] {
        std::fs::create_dir_all(&dir)?;
        inotify.add_watch(&dir, flags)?;
    }
    // For tokio, any descriptor that becomes readable can be used as a pipe.
    Receiver::from_owned_fd_unchecked(inotify.into())
}

async fn next(events: &Receiver) {
    if events.readable().await.is_err() {
        return std::future::pending().await;
    }
    // The events are ignored: the scan finds all changes.
    let mut ignored = [0; 4096];
    while matches!(events.try_read(&mut ignored), Ok(count) if count > 0) {}
}

/// Applies every changed file. Returns `true` if a file failed and must be retried.
async fn pass(client: &Client, dir: &Path, seen: &mut BTreeMap<PathBuf, (SystemTime, u64)>) -> bool {
    let mut failed = false;
    let files = manifests(dir);
    for (path, stamp) in &files {
        if seen.get(path) == Some(stamp) {
            continue;
        }
        match apply_file(client, dir, path).await {
            Ok(count) => {
                tracing::info!(file = %path.display(), count, "manifest applied");
                seen.insert(path.clone(), *stamp);
            }
            Err(why) => {
                tracing::warn!(file = %path.display(), why, "failed to apply a manifest");
                failed = true;
            }
        }
    }
    failed
}

fn manifests(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, u64)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let (path, Ok(meta)) = (entry.path(), entry.metadata()) else { continue };
            if meta.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json") {
                found.insert(path, (meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), meta.len()));
            }
        }
    }
    found
}

async fn apply_file(client: &Client, dir: &Path, path: &Path) -> Result<usize, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let documents: Vec<Value> = if text.trim().is_empty() {
        vec![]
    } else {
        serde_saphyr::from_multiple(&text).map_err(|e| e.to_string())?
    };
    let mut applied = vec![];
    for document in documents.into_iter().filter(|document| document.is_object()) {
        applied.push(apply_object(client, document).await?);
    }
    applied.sort();
    let name = addon_name(dir, path);
    let before = load(client, &name).await?;
    for gone in before.iter().filter(|object| !applied.contains(object)) {
        delete_object(client, gone).await?;
    }
    if before != applied {
        save(client, &name, &applied).await?;
    }
    Ok(applied.len())
}

async fn apply_object(client: &Client, document: Value) -> Result<Applied, String> {
    let object: DynamicObject = serde_json::from_value(document).map_err(|e| e.to_string())?;
    let types = object.types.clone().ok_or("an object has no apiVersion and kind")?;
    let api = api(client, &types.api_version, &types.kind, object.namespace().as_deref()).await?;
    let name = object.name_any();
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object))
        .await
        .map_err(|e| format!("{} {name}: {e}", types.kind))?;
    Ok(Applied { api_version: types.api_version, kind: types.kind, namespace: object.namespace(), name })
}

async fn delete_object(client: &Client, object: &Applied) -> Result<(), String> {
    let api = api(client, &object.api_version, &object.kind, object.namespace.as_deref()).await?;
    match api.delete(&object.name, &DeleteParams::background()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

async fn api(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: Option<&str>,
) -> Result<Api<DynamicObject>, String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    let (resource, capabilities) =
        discovery::pinned_kind(client, &gvk).await.map_err(|e| format!("{kind}: {e}"))?;
    Ok(match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace.unwrap_or("default"), &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    })
}

fn addon_name(dir: &Path, path: &Path) -> String {
    let relative = path.strip_prefix(dir).unwrap_or(path).to_string_lossy();
    let digest = Sha256::digest(relative.as_bytes());
    let suffix: String = digest[..5].iter().map(|byte| format!("{byte:02x}")).collect();
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().to_lowercase()).unwrap_or_default();
    let stem: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
    format!("addon-{}-{suffix}", stem.trim_matches('-'))
}

async fn load(client: &Client, name: &str) -> Result<Vec<Applied>, String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let found = maps.get_opt(name).await.map_err(|e| e.to_string())?;
    let text = found.and_then(|map| map.data?.remove("objects"));
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
}

async fn save(client: &Client, name: &str, objects: &[Applied]) -> Result<(), String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let text = serde_json::to_string(objects).map_err(|e| e.to_string())?;
    let map = ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        data: Some([("objects".to_owned(), text)].into()),
        ..ConfigMap::default()
    };
    maps.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&map))
        .await
        .map(|_| ())
        .map_err(|e| e.to_string())
}
