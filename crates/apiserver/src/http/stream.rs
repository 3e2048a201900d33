//! Watch responses: one `{"type","object"}` per line, flushed whenever the queue is empty.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::ApiBody;
use super::handlers;
use super::negotiate::{Encoding, Shape};
use super::respond::{Renderer, partial, response};
use super::service::Call;
use crate::objects::{Watch, WatchEvent, bookmark_object};
use crate::resources::Resource;
use crate::selector::FieldSelector;
use crate::status::Status;

/// Lines are batched up to this size while events are queued.
const GATHER: usize = 64 << 10;
/// Larger objects are sent in their own frame, without a copy.
const OWN_FRAME_FROM: usize = 16 << 10;
/// Upstream's default: half an hour, extended by a random time so that watches do not all end at once.
const DEADLINE: Duration = Duration::from_secs(1800);

/// Answers a watch.
pub(super) async fn watch(call: &Call<'_>, resource: &Arc<Resource>) -> Result<Response<ApiBody>, Status> {
    let renderer = handlers::renderer(call, resource, true)?;
    if renderer.form.encoding != Encoding::Json {
        return Err(Status::not_acceptable(&["application/json"]));
    }
    let deadline = DEADLINE.mul_f64(rand::random_range(1.0..2.0));
    let mut options = call.query.watch(resource, deadline)?;
    if !call.info.name.is_empty() {
        options.list.fields = FieldSelector::name(&call.info.name);
    }
    let range = handlers::range(call, resource);
    let watch = call.shared.objects.watch(resource, range, options).await?;
    let stopping = call.shared.stopping.subscribe();
    let lines = Lines { watch, renderer, stopping, table_columns: true, queue: Vec::new(), done: false };
    let stream = futures::stream::unfold(lines, |mut lines| async move {
        let chunk = lines.next().await?;
        Some((chunk, lines))
    });
    Ok(response(StatusCode::OK, Encoding::Json, ApiBody::stream(stream)))
}

struct Lines {
    watch: Watch,
    renderer: Renderer,
    stopping: watch::Receiver<bool>,
    table_columns: bool,
    /// Chunks in reverse order.
    queue: Vec<Bytes>,
    done: bool,
}

impl Lines {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.queue.pop() {
                return Some(chunk);
            }
            if self.done {
                return None;
            }
            let first = tokio::select! {
                event = self.watch.next() => event,
                _ = self.stopping.wait_for(|stopping| *stopping) => None,
            };
            self.gather(first?).await;
        }
    }

    /// Encodes an event and all events queued after it.
    async fn gather(&mut self, first: WatchEvent) {
        let mut chunks = Vec::new();
        let mut buffer = BytesMut::new();
        let mut next = Some(first);
        while let Some(event) = next {
            let (name, object) = match self.encode(&event).await {
                Ok(object) => (event.name(), object),
                Err(status) => {
                    self.done = true;
                    ("ERROR", status.to_bytes())
                }
            };
            buffer.extend_from_slice(b"{\"type\":\"");
            buffer.extend_from_slice(name.as_bytes());
            buffer.extend_from_slice(b"\",\"object\":");
            if object.len() > OWN_FRAME_FROM {
                chunks.push(buffer.split().freeze());
                chunks.push(object);
            } else {
                buffer.extend_from_slice(&object);
            }
            buffer.extend_from_slice(b"}\n");
            if self.done || buffer.len() >= GATHER {
                break;
            }
            next = self.watch.next_ready();
        }
        chunks.push(buffer.freeze());
        chunks.reverse();
        self.queue = chunks;
    }

    async fn encode(&mut self, event: &WatchEvent) -> Result<Bytes, Status> {
        let resource = self.renderer.resource.clone();
        let shape = self.renderer.form.shape;
        if let WatchEvent::Error(status) = event {
            return Ok(status.to_bytes());
        }
        if let &WatchEvent::Bookmark { revision, initial_events_end } = event {
            let object = bookmark_object(&resource, revision, initial_events_end);
            return Ok(self.bookmark(shape, object));
        }
        let Some(version) = event.version().cloned() else { return Ok(Bytes::new()) };
        let revision = version.revision();
        let version = self
            .renderer
            .convert(vec![version])
            .await?
            .pop()
            .ok_or_else(|| Status::internal("lost object"))?;
        match shape {
            Shape::Table => {
                let mut table = self.renderer.table(&[version], self.table_columns)?;
                table["metadata"] = json!({"resourceVersion": revision.to_string()});
                self.table_columns = false;
                Ok(table.to_string().into())
            }
            Shape::Metadata => Ok(partial(&version).clone()),
            _ => Ok(version.bytes()),
        }
    }

    fn bookmark(&self, shape: Shape, mut object: Value) -> Bytes {
        match shape {
            Shape::Table => {
                let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let rows = json!([{"cells": [], "object": object}]);
                let table = json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                    "columnDefinitions": [], "rows": rows,
                });
                table.to_string().into()
            }
            Shape::Metadata => {
                object["kind"] = "PartialObjectMetadata".into();
                object["apiVersion"] = "meta.k8s.io/v1".into();
                object.to_string().into()
            }
            _ => object.to_string().into(),
        }
    }
}
