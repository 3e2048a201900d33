//! OpenAPI, for `kubectl explain`, `apply` and client-side validation.
//!
//! `/openapi/v3` is an index of one document per group and version. A document is built on the first request and kept
//! until its sources change; the index has a hash of the sources, so it can be built without the documents. Read
//! [`document`] for the structure, [`builtin`] and [`custom`] for the schemas.

mod builtin;
mod custom;
mod document;
mod gnostic;
mod merge_keys;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY};
use http::{HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use crate::http::ApiBody;
use crate::resources::Snapshot;
use crate::server::{Route, RouteRequest};
use crate::status::Status;

/// Serves `/openapi/v3` and `/openapi/v2`.
pub struct OpenApi {
    version: String,
    cache: Mutex<Cache>,
}

/// The documents of one generation of the resource table; documents whose hash is unchanged are kept after a change.
#[derive(Default)]
struct Cache {
    generation: u64,
    index: Option<Arc<Index>>,
    documents: HashMap<String, (String, Bytes)>,
}

enum Form {
    Json,
    Protobuf,
}

struct Index {
    /// By path below `/openapi/v3/`: group, version and hash.
    entries: HashMap<String, (String, String, String)>,
    body: Bytes,
    etag: String,
}

impl OpenApi {
    /// `version` is the server's, for every document.
    pub fn new(version: &str) -> Self {
        OpenApi { version: version.to_owned(), cache: Mutex::new(Cache::default()) }
    }

    fn index(&self, snapshot: &Snapshot) -> Arc<Index> {
        if let Some(index) = self.fresh(snapshot) {
            return index;
        }
        let index = Arc::new(make_index(snapshot, &self.version));
        let mut cache = self.cache.lock();
        cache.generation = snapshot.generation();
        cache.index = Some(index.clone());
        cache.documents.retain(|path, (hash, _)| index.entries.get(path).is_some_and(|e| e.2 == *hash));
        index
    }

    fn fresh(&self, snapshot: &Snapshot) -> Option<Arc<Index>> {
        let cache = self.cache.lock();
        cache.index.clone().filter(|_| cache.generation == snapshot.generation())
    }

    fn document(&self, snapshot: &Snapshot, path: &str, index: &Index) -> Option<(String, Bytes)> {
        let (group, version, hash) = index.entries.get(path)?;
        if let Some((cached, body)) = self.cache.lock().documents.get(path)
            && cached == hash
        {
            return Some((hash.clone(), body.clone()));
        }
        let body = Bytes::from(document::make(snapshot, group, version, &self.version).to_string());
        self.cache.lock().documents.insert(path.to_owned(), (hash.clone(), body.clone()));
        Some((hash.clone(), body))
    }

    fn answer(&self, request: &RouteRequest<'_>) -> Result<Response<ApiBody>, Status> {
        let accept = request.parts.headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
        let path = request.parts.uri.path().trim_end_matches('/');
        let wanted =
            accept.split(',').find_map(|clause| match clause.split(';').next().unwrap_or_default().trim() {
                "*/*" | "application/*" | "application/json" | "" => Some(Form::Json),
                other if path == "/openapi/v2" && gnostic::ACCEPTED.contains(&other) => Some(Form::Protobuf),
                _ => None,
            });
        match wanted {
            Some(Form::Json) => {}
            Some(Form::Protobuf) => {
                let body = gnostic::document(&self.version);
                let etag = digest(&body);
                let mut response = respond(request, body, &format!("\"{etag}\""), None)?;
                let own = HeaderValue::from_static(gnostic::CONTENT_TYPE);
                response.headers_mut().insert(CONTENT_TYPE, own);
                return Ok(response);
            }
            None => return Err(Status::not_acceptable(&["application/json"])),
        }
        let snapshot = request.objects.resources().snapshot();
        if path == "/openapi/v2" {
            let body = Bytes::from(document::version_2(&snapshot, &self.version).to_string());
            let etag = digest(&body);
            return respond(request, body, &format!("\"{etag}\""), None);
        }
        let index = self.index(&snapshot);
        let Some(path) = path.strip_prefix("/openapi/v3").map(|p| p.trim_start_matches('/')) else {
            return Err(Status::not_found_path());
        };
        if path.is_empty() {
            return respond(request, index.body.clone(), &index.etag, None);
        }
        let (hash, body) = self.document(&snapshot, path, &index).ok_or_else(Status::not_found_path)?;
        let asked = request.parts.uri.query().and_then(|q| {
            form_urlencoded::parse(q.as_bytes())
                .find(|(key, _)| key == "hash")
                .map(|(_, value)| value.into_owned())
        });
        match asked {
            Some(asked) if asked != hash => redirect(path, &hash),
            asked => respond(request, body, &format!("\"{hash}\""), asked),
        }
    }
}

impl Route for OpenApi {
    fn paths(&self) -> &'static [&'static str] {
        &["/openapi/v2", "/openapi/v3", "/openapi/v3/..."]
    }

    fn handle<'a>(&'a self, request: RouteRequest<'a>) -> BoxFuture<'a, Result<Response<ApiBody>, Status>> {
        Box::pin(async move { self.answer(&request) })
    }
}

fn make_index(snapshot: &Snapshot, server: &str) -> Index {
    let mut entries = HashMap::new();
    let mut paths = Map::new();
    for group in snapshot.groups() {
        for version in &group.versions {
            let path = match group.group.as_str() {
                "" => format!("api/{version}"),
                group => format!("apis/{group}/{version}"),
            };
            let hash = sources(snapshot, &group.group, version, server);
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path.clone(), json!({"serverRelativeURL": url}));
            entries.insert(path, (group.group.clone(), version.clone(), hash));
        }
    }
    let body = Bytes::from(json!({"paths": paths}).to_string());
    let etag = format!("\"{}\"", digest(&body));
    Index { entries, body, etag }
}

/// A hash of all sources of a document.
fn sources(snapshot: &Snapshot, group: &str, version: &str, server: &str) -> String {
    let mut hasher = Sha512::new();
    hasher.update(server);
    hasher.update(env!("CARGO_PKG_VERSION"));
    for resource in snapshot.in_version(group, version) {
        let def = &resource.def;
        let verbs = def.verbs.join(",");
        for text in [&def.plural, &def.kind, &verbs] {
            hasher.update(text);
            hasher.update([0]);
        }
        hasher.update([u8::from(def.namespaced)]);
        def.subresources.iter().for_each(|s| hasher.update(&s.name));
        if let Some(kind) = resource.strategy.custom() {
            hasher.update(kind.open_api.to_string());
        }
    }
    hex::encode_upper(hasher.finalize())
}

fn digest(body: &[u8]) -> String {
    hex::encode_upper(Sha512::digest(body))
}

fn respond(
    request: &RouteRequest<'_>,
    body: Bytes,
    etag: &str,
    hash: Option<String>,
) -> Result<Response<ApiBody>, Status> {
    let known = request
        .parts
        .headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .any(|v| v.to_str().is_ok_and(|t| t.contains(etag)));
    let mut response = Response::new(if known { ApiBody::full(Bytes::new()) } else { ApiBody::full(body) });
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(ETAG, etag.parse().map_err(Status::internal)?);
    // With the correct hash, the content never changes.
    if hash.is_some() {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let year = jiff::SignedDuration::from_hours(365 * 24);
        let expires = request.objects.clock().now().checked_add(year).map_err(Status::internal)?;
        let expires = expires.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        headers.insert(EXPIRES, expires.parse().map_err(Status::internal)?);
    } else {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    }
    Ok(response)
}

fn redirect(path: &str, hash: &str) -> Result<Response<ApiBody>, Status> {
    let mut response = Response::new(ApiBody::full(Bytes::new()));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let location = format!("/openapi/v3/{path}?hash={hash}");
    response.headers_mut().insert(LOCATION, location.parse().map_err(Status::internal)?);
    Ok(response)
}

/// `{"$ref": …}` to a component, in a single-element allOf so that it can have siblings.
fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}
