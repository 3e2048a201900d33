//! Builds responses: from stored bytes if possible, otherwise in the requested format.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::ApiBody;
use super::negotiate::{Encoding, Form, Shape};
use crate::object::{encode, object_mut};
use crate::objects::{ListPage, Objects};
use crate::resources::Resource;
use crate::server::{IncludeObject, Plugins, TableOptions};
use crate::status::Status;
use crate::storage::Version;

/// Objects up to this size are copied together, because one frame per object would cost more.
const CHUNK: usize = 64 << 10;

/// How to render the response of a request.
#[derive(Clone)]
pub(crate) struct Renderer {
    pub(crate) objects: Objects,
    pub(crate) plugins: Plugins,
    pub(crate) resource: Arc<Resource>,
    pub(crate) form: Form,
    pub(crate) pretty: bool,
    pub(crate) include_object: IncludeObject,
}

impl Renderer {
    /// A response with one object.
    pub(crate) async fn object(
        &self,
        code: StatusCode,
        version: Arc<Version>,
    ) -> Result<Response<ApiBody>, Status> {
        let revision = version.revision();
        let version =
            self.convert(vec![version]).await?.pop().ok_or_else(|| Status::internal("lost object"))?;
        match self.form.shape {
            Shape::Table => {
                let mut table = self.table(&[version], true)?;
                object_mut(&mut table)
                    .insert("metadata".into(), json!({"resourceVersion": revision.to_string()}));
                self.value(code, &table)
            }
            Shape::Metadata => Ok(self.raw(code, partial(&version).clone())),
            _ => Ok(self.raw(code, version.bytes())),
        }
    }

    /// A response with a list.
    pub(crate) async fn list(&self, page: ListPage) -> Result<Response<ApiBody>, Status> {
        let mut metadata = Map::new();
        metadata.insert("resourceVersion".into(), page.revision.to_string().into());
        if let Some(token) = &page.continue_token {
            metadata.insert("continue".into(), token.as_str().into());
        }
        if let Some(remaining) = page.remaining {
            metadata.insert("remainingItemCount".into(), remaining.into());
        }
        let items = self.convert(page.items).await?;
        if self.form.shape == Shape::Table {
            let mut table = self.table(&items, true)?;
            object_mut(&mut table).insert("metadata".into(), metadata.into());
            return self.value(StatusCode::OK, &table);
        }
        let whole = self.form.shape != Shape::Metadata;
        let (kind, api_version) = if whole {
            (self.resource.def.list_kind.as_str(), self.resource.api_version())
        } else {
            ("PartialObjectMetadataList", "meta.k8s.io/v1")
        };
        let head = format!(
            "{{\"kind\":{kind:?},\"apiVersion\":{api_version:?},\"metadata\":{},\"items\":[",
            Value::Object(metadata)
        );
        let mut chunks = Vec::new();
        let mut buffer = BytesMut::from(head.as_bytes());
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                buffer.extend_from_slice(b",");
            }
            let bytes = if whole { item.bytes() } else { partial(item).clone() };
            if bytes.len() > CHUNK {
                chunks.push(buffer.split().freeze());
                chunks.push(bytes);
            } else {
                if buffer.len() + bytes.len() > CHUNK {
                    chunks.push(buffer.split().freeze());
                    buffer.reserve(CHUNK);
                }
                buffer.extend_from_slice(&bytes);
            }
        }
        buffer.extend_from_slice(b"]}");
        chunks.push(buffer.freeze());
        if self.plain() {
            return Ok(response(StatusCode::OK, self.form.encoding, ApiBody::chunks(chunks)));
        }
        Ok(self.raw(StatusCode::OK, chunks.concat().into()))
    }

    /// A response with a value that is not a stored object.
    pub(crate) fn value(&self, code: StatusCode, value: &Value) -> Result<Response<ApiBody>, Status> {
        Ok(value_response(code, value, self.form.encoding, self.pretty))
    }

    /// Converts stored versions to the version of the resource; most need no conversion.
    pub(crate) async fn convert(&self, versions: Vec<Arc<Version>>) -> Result<Vec<Arc<Version>>, Status> {
        if versions.iter().all(|version| self.resource.serves(version)) {
            return Ok(versions);
        }
        let mut out = versions;
        let odd: Vec<usize> = (0..out.len()).filter(|at| !self.resource.serves(&out[*at])).collect();
        let stored = odd.iter().map(|at| out[*at].decode()).collect();
        let converted = self.resource.strategy.from_storage(stored).await?;
        if converted.len() != odd.len() {
            return Err(Status::internal("conversion returned a different number of objects"));
        }
        for (at, mut object) in odd.into_iter().zip(converted) {
            object_mut(&mut object).insert("apiVersion".into(), self.resource.api_version().into());
            let old = &out[at];
            let version = if old.revision() == 0 {
                Version::stored(old.key().clone(), 0, 0, object.to_string().into(), 0)
            } else {
                Version::splice(old.key().clone(), old.revision(), old.created(), &encode(&object))
            };
            out[at] = Arc::new(version);
        }
        Ok(out)
    }

    /// A table of converted objects.
    pub(crate) fn table(&self, versions: &[Arc<Version>], columns: bool) -> Result<Value, Status> {
        let tables =
            self.plugins.tables.as_ref().ok_or_else(|| Status::not_acceptable(&["application/json"]))?;
        let now = self.objects.clock().now();
        tables.table(
            &self.resource,
            versions,
            TableOptions { include_object: self.include_object, columns, now },
        )
    }

    /// Whether lists are concatenated stored bytes.
    pub(crate) fn sends_stored_bytes(&self) -> bool {
        self.plain() && self.form.shape == Shape::Object
    }

    fn plain(&self) -> bool {
        self.form.encoding == Encoding::Json && !self.pretty
    }

    fn raw(&self, code: StatusCode, json: Bytes) -> Response<ApiBody> {
        if self.plain() {
            return response(code, Encoding::Json, ApiBody::full(json));
        }
        let value: Value = serde_json::from_slice(&json).unwrap_or_default();
        value_response(code, &value, self.form.encoding, self.pretty)
    }
}

/// The object as `PartialObjectMetadata` in bytes, computed once per version.
pub(crate) fn partial(version: &Version) -> &Bytes {
    version.partial(|object| {
        let metadata = object.get("metadata").cloned().unwrap_or_default();
        let partial =
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
        Bytes::from(partial.to_string())
    })
}

/// A response with a value in an encoding.
pub(crate) fn value_response(
    code: StatusCode,
    value: &Value,
    encoding: Encoding,
    pretty: bool,
) -> Response<ApiBody> {
    let text = match encoding {
        Encoding::Json if pretty => {
            serde_json::to_string_pretty(value).map(|text| text + "\n").unwrap_or_default()
        }
        Encoding::Json => value.to_string(),
        Encoding::Yaml => serde_saphyr::to_string(value).unwrap_or_default(),
    };
    response(code, encoding, ApiBody::full(text))
}

/// A JSON response.
pub(crate) fn json_response(code: StatusCode, value: &Value) -> Response<ApiBody> {
    value_response(code, value, Encoding::Json, false)
}

/// A plain-text response.
pub(crate) fn text(code: StatusCode, text: impl Into<String>) -> Response<ApiBody> {
    let mut response = Response::new(ApiBody::full(text.into()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert("X-Content-Type-Options", HeaderValue::from_static("nosniff"));
    response
}

/// An error response; always JSON.
pub(crate) fn failure(status: &Status) -> Response<ApiBody> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = response(code, Encoding::Json, ApiBody::full(status.to_bytes()));
    let retry = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        response.headers_mut().insert(RETRY_AFTER, retry.into());
    }
    response
}

/// A response with the headers that all responses have.
pub(crate) fn response(code: StatusCode, encoding: Encoding, body: ApiBody) -> Response<ApiBody> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(encoding.content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}
