//! Serves requests below `/v2/`.

use std::io::SeekFrom;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use drover_image::{Digest, is_repository, is_tag};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use parking_lot::{Mutex, RwLock};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use crate::catalog::{Catalog, Located, Stamp};
use crate::range::{self, Wanted};

/// How much of a blob each reader buffers.
const CHUNK: usize = 256 * 1024;
/// The maximum number of tags or repositories in one response.
const PAGE: usize = 1000;

/// The body of a response.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A registry of the images in a folder. Clones share their state.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    folder: PathBuf,
    scratch: PathBuf,
    catalog: RwLock<Arc<Catalog>>,
    /// Held while the folder is read, on a thread that may block.
    refreshing: Mutex<()>,
}

/// An error response as the distribution specification defines it.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }
}

enum Route<'a> {
    Base,
    Catalog,
    Tags(&'a str),
    Manifest(&'a str, Version<'a>),
    Blob(&'a str, Digest),
}

enum Version<'a> {
    Tag(&'a str),
    Digest(Digest),
}

impl Registry {
    /// Serves the archives in `folder`, which does not have to exist yet. Compressed archives are decompressed into
    /// `scratch`, which must be outside of the folder.
    pub fn new(folder: impl Into<PathBuf>, scratch: impl Into<PathBuf>) -> Self {
        let inner = Inner {
            folder: folder.into(),
            scratch: scratch.into(),
            catalog: RwLock::default(),
            refreshing: Mutex::new(()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Handles a request whose path is `/v2` or below.
    pub async fn answer(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Response<Body> {
        let mut response = match self.route(method, uri, headers).await {
            Ok(response) => response,
            Err(refusal) => {
                let error = json!({"errors": [{"code": refusal.code, "message": refusal.message}]});
                let mut response = json_response(&error);
                *response.status_mut() = refusal.status;
                if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
                    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
                }
                response
            }
        };
        response
            .headers_mut()
            .insert("docker-distribution-api-version", HeaderValue::from_static("registry/2.0"));
        if *method == Method::HEAD {
            return response.map(|_| empty());
        }
        response
    }

    async fn route(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Refusal> {
        let query = Query::of(uri);
        let ns = query.get("ns");
        let ns = ns.as_deref();
        if *method != Method::GET && *method != Method::HEAD {
            let message =
                "this registry is read-only: add image archives to the server's images folder instead";
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", message));
        }
        match route(uri.path())? {
            Route::Base => Ok(json_response(&json!({}))),
            Route::Catalog => {
                let catalog = self.current().await;
                let (page, more) = query.page(catalog.repositories())?;
                Ok(paged("/v2/_catalog".into(), json!({"repositories": page}), &page, more))
            }
            Route::Tags(name) => {
                let catalog = self.current().await;
                known(&catalog, name, ns)?;
                let (page, more) = query.page(catalog.tags(name, ns))?;
                Ok(paged(format!("/v2/{name}/tags/list"), json!({"name": name, "tags": page}), &page, more))
            }
            Route::Manifest(name, version) => {
                let catalog = self.current().await;
                known(&catalog, name, ns)?;
                let (image, found) = match version {
                    Version::Tag(tag) => (format!("{name}:{tag}"), catalog.tagged(name, ns, tag)),
                    Version::Digest(digest) => {
                        let found = catalog.manifest(name, ns, &digest);
                        (format!("{name}@{digest}"), found.map(|manifest| (digest, manifest)))
                    }
                };
                let (digest, manifest) = found.ok_or_else(|| {
                    let message = format!("image {image} not found in the server's images folder");
                    Refusal::new(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", message)
                })?;
                let length = manifest.bytes.len();
                let mut response = Response::new(full(manifest.bytes));
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_TYPE, value(&manifest.media_type));
                headers.insert(header::CONTENT_LENGTH, length.into());
                named(headers, &digest);
                Ok(response)
            }
            Route::Blob(name, digest) => self.blob(method, name, ns, &digest, headers).await,
        }
    }

    async fn blob(
        &self,
        method: &Method,
        name: &str,
        ns: Option<&str>,
        digest: &Digest,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Refusal> {
        // Use the snapshot of the request for the manifest, unless the archive has been replaced since.
        let before = self.inner.catalog.read().clone();
        let mut opened = open(before.blob(name, ns, digest)).await;
        if opened.is_none() {
            let catalog = self.current().await;
            known(&catalog, name, ns)?;
            opened = open(catalog.blob(name, ns, digest)).await;
        }
        let (file, located) = opened.ok_or_else(|| {
            let message = format!("blob {digest} not found in {name}");
            Refusal::new(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", message)
        })?;
        let size = located.extent.size;
        let asked = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
        let (status, first, length) = match range::parse(asked, size) {
            Wanted::All => (StatusCode::OK, 0, size),
            Wanted::Part(first, last) => (StatusCode::PARTIAL_CONTENT, first, last - first + 1),
            Wanted::Unsatisfiable => {
                let message = format!("the blob has {size} bytes");
                let status = StatusCode::RANGE_NOT_SATISFIABLE;
                return Err(Refusal::new(status, "RANGE_INVALID", message));
            }
        };
        let body = match *method {
            Method::HEAD => empty(),
            _ => stream(file, located.extent.offset + first, length).await?,
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, length.into());
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        named(headers, digest);
        if status == StatusCode::PARTIAL_CONTENT {
            let range = format!("bytes {first}-{}/{size}", first + length - 1);
            headers.insert(header::CONTENT_RANGE, value(&range));
        }
        Ok(response)
    }

    /// The current images in the folder. A new archive is hashed once, which takes time.
    async fn current(&self) -> Arc<Catalog> {
        let inner = self.inner.clone();
        let refreshed = tokio::task::spawn_blocking(move || {
            let _one = inner.refreshing.lock();
            let before = inner.catalog.read().clone();
            if before.is_current(&inner.folder) {
                return before;
            }
            let fresh = Arc::new(before.refreshed(&inner.folder, &inner.scratch));
            *inner.catalog.write() = fresh.clone();
            fresh
        });
        match refreshed.await {
            Ok(catalog) => catalog,
            Err(error) => {
                tracing::warn!(%error, "failed to read the images folder");
                self.inner.catalog.read().clone()
            }
        }
    }
}

fn route(path: &str) -> Result<Route<'_>, Refusal> {
    let unknown = || Refusal::new(StatusCode::NOT_FOUND, "UNSUPPORTED", "unknown path");
    let rest = match path.strip_prefix("/v2") {
        Some("" | "/") => return Ok(Route::Base),
        Some(rest) => rest.strip_prefix('/').ok_or_else(unknown)?,
        None => return Err(unknown()),
    };
    if rest == "_catalog" {
        return Ok(Route::Catalog);
    }
    let checked = |name: &'_ str| {
        let message = format!("{name:?} is not a valid repository name");
        if is_repository(name) {
            Ok(())
        } else {
            Err(Refusal::new(StatusCode::BAD_REQUEST, "NAME_INVALID", message))
        }
    };
    if let Some(name) = rest.strip_suffix("/tags/list") {
        checked(name)?;
        return Ok(Route::Tags(name));
    }
    let (head, last) = rest.rsplit_once('/').ok_or_else(unknown)?;
    if let Some(name) = head.strip_suffix("/manifests") {
        checked(name)?;
        let version = Digest::parse(last).map(Version::Digest);
        let version = version.or(is_tag(last).then_some(Version::Tag(last))).ok_or_else(|| {
            let message = format!("{last:?} is neither a tag nor a sha256 digest");
            Refusal::new(StatusCode::BAD_REQUEST, "MANIFEST_INVALID", message)
        })?;
        return Ok(Route::Manifest(name, version));
    }
    let name = head.strip_suffix("/blobs").ok_or_else(unknown)?;
    checked(name)?;
    let digest = Digest::parse(last).ok_or_else(|| {
        let message = format!("{last:?} is not a sha256 digest");
        Refusal::new(StatusCode::BAD_REQUEST, "DIGEST_INVALID", message)
    })?;
    Ok(Route::Blob(name, digest))
}

fn known(catalog: &Catalog, name: &str, ns: Option<&str>) -> Result<(), Refusal> {
    if catalog.has_repository(name, ns) {
        return Ok(());
    }
    let message = format!("no archive in the server's images folder contains image {name}");
    Err(Refusal::new(StatusCode::NOT_FOUND, "NAME_UNKNOWN", message))
}

/// Opens the file if it has not changed since it was indexed.
async fn open(located: Option<Located>) -> Option<(tokio::fs::File, Located)> {
    let located = located?;
    let file = tokio::fs::File::open(&located.file).await.ok()?;
    let metadata = file.metadata().await.ok()?;
    (Stamp::of(&metadata) == located.stamp).then_some((file, located))
}

async fn stream(mut file: tokio::fs::File, offset: u64, length: u64) -> Result<Body, Refusal> {
    file.seek(SeekFrom::Start(offset)).await.map_err(|error| {
        Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "UNKNOWN",
            format!("failed to read the archive: {error}"),
        )
    })?;
    file.set_max_buf_size(CHUNK);
    let reader = ReaderStream::with_capacity(file.take(length), CHUNK);
    Ok(StreamBody::new(Frames(reader)).boxed_unsync())
}

/// Adapts a stream of bytes to a stream of frames.
struct Frames(ReaderStream<tokio::io::Take<tokio::fs::File>>);

impl futures_core::Stream for Frames {
    type Item = std::io::Result<http_body::Frame<Bytes>>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let next = std::pin::Pin::new(&mut self.0).poll_next(cx);
        next.map(|item| item.map(|item| item.map(http_body::Frame::data)))
    }
}

/// The decoded query.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(name, value)| (decode(name), decode(value))).collect())
    }

    fn get(&self, name: &str) -> Option<String> {
        self.0.iter().find(|(have, value)| have == name && !value.is_empty()).map(|(_, value)| value.clone())
    }

    /// One page of a sorted list, and whether more follow.
    fn page<'a>(&self, all: std::collections::BTreeSet<&'a str>) -> Result<(Vec<&'a str>, bool), Refusal> {
        let n = match self.get("n") {
            None => PAGE,
            Some(n) => n.parse().map_err(|_| {
                let message = format!("n={n:?} is not a number");
                Refusal::new(StatusCode::BAD_REQUEST, "PAGINATION_NUMBER_INVALID", message)
            })?,
        };
        let n = n.min(PAGE);
        let last = self.get("last");
        let after = |tag: &&str| last.as_deref().is_none_or(|last| *tag > last);
        let mut rest = all.into_iter().filter(after);
        let page = rest.by_ref().take(n).collect();
        Ok((page, rest.next().is_some()))
    }
}

fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn paged(path: String, body: serde_json::Value, page: &[&str], more: bool) -> Response<Body> {
    let mut response = json_response(&body);
    if let (true, Some(last)) = (more, page.last()) {
        let link = format!("<{path}?n={}&last={last}>; rel=\"next\"", page.len());
        response.headers_mut().insert(header::LINK, value(&link));
    }
    response
}

fn json_response(body: &serde_json::Value) -> Response<Body> {
    let bytes = Bytes::from(body.to_string());
    let length = bytes.len();
    let mut response = Response::new(full(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, length.into());
    response
}

fn named(headers: &mut HeaderMap, digest: &Digest) {
    headers.insert("docker-content-digest", value(&digest.to_string()));
    headers.insert(header::ETAG, value(&format!("\"{digest}\"")));
}

/// Media types come from the archives and can be invalid as a header.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("application/octet-stream"))
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn empty() -> Body {
    full(Bytes::new())
}
