//! Downloads documents and blobs with retries, and verifies everything that has a known digest.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use drover_image::{
    Digest,
    manifest::{ACCEPT, Blob, DOCUMENT_LIMIT},
};

use super::{
    cache::{Cache, Finished, Writing},
    session::{Failure, Session},
};
use crate::{
    host::{Host, offload},
    http::read_body,
};

/// The number of attempts per request.
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// If a registry asks for a longer pause, the next pass of the plan is early enough.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit for receiving the next part of a body.
const STALL: Duration = Duration::from_secs(60);
/// How much is buffered before it is written to disk.
const BATCH: usize = 512 * 1024;

/// Pauses between attempts.
struct Backoff {
    left: u32,
    pause: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self { left: TRIES - 1, pause: FIRST_PAUSE }
    }

    /// Waits before the next attempt, or returns an error after the last one.
    async fn after(&mut self, host: &dyn Host, failure: Failure) -> Result<(), Failure> {
        let Some(asked) = failure.retry else { return Err(failure) };
        if self.left == 0 {
            return Err(Failure::permanent(format!("{} (after {TRIES} attempts)", failure.text)));
        }
        self.left -= 1;
        let jitter = self.pause.mul_f64(host.random() as f64 / u64::MAX as f64 / 2.0);
        let pause = (self.pause + jitter).max(asked.unwrap_or_default()).min(LONGEST_PAUSE);
        tracing::debug!("retrying the pull in {pause:?}: {}", failure.text);
        tokio::time::sleep(pause).await;
        self.pause *= 2;
        Ok(())
    }
}

/// Downloads a manifest by tag or digest; by digest, it is verified.
pub(super) async fn manifest(
    host: &dyn Host,
    session: &mut Session<'_>,
    tag: &str,
    digest: Option<&Digest>,
) -> Result<Bytes, Failure> {
    let wanted = digest.map_or_else(|| tag.to_owned(), ToString::to_string);
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
    let (bytes, named) = document(host, session, &format!("manifests/{wanted}"), &headers).await?;
    let found = Digest::of(&bytes);
    if let Some(expected) = digest.or(named.as_ref()).filter(|expected| **expected != found) {
        return Err(Failure::permanent(format!(
            "manifest {wanted} does not match its digest: expected {expected}, got {found}"
        )));
    }
    Ok(bytes)
}

/// Downloads a small blob into memory.
pub(super) async fn config(
    host: &dyn Host,
    session: &mut Session<'_>,
    blob: &Blob,
) -> Result<Bytes, Failure> {
    let (bytes, _) = document(host, session, &format!("blobs/{}", blob.digest), &HeaderMap::new()).await?;
    let found = Digest::of(&bytes);
    if found != blob.digest || bytes.len() as u64 != blob.size {
        return Err(wrong("config", blob, &found, bytes.len() as u64));
    }
    Ok(bytes)
}

async fn document(
    host: &dyn Host,
    session: &mut Session<'_>,
    rest: &str,
    headers: &HeaderMap,
) -> Result<(Bytes, Option<Digest>), Failure> {
    let mut backoff = Backoff::new();
    loop {
        let tried = async {
            let answer = session.get(rest, headers).await?;
            let named = answer.headers().get("docker-content-digest");
            let named = named.and_then(|value| Digest::parse(value.to_str().ok()?));
            let limit = usize::try_from(DOCUMENT_LIMIT).unwrap_or(usize::MAX);
            let bytes = read_body(answer.into_body(), limit, DOCUMENT_TIMEOUT).await?;
            Ok((bytes, named))
        };
        match tried.await {
            Ok(done) => return Ok(done),
            Err(failure) => backoff.after(host, failure).await?,
        }
    }
}

/// Downloads a layer to disk. After a broken connection, the download resumes.
pub(super) async fn layer(
    host: &Arc<dyn Host>,
    session: &mut Session<'_>,
    cache: &Cache,
    blob: &Blob,
) -> Result<(), Failure> {
    let begun = on_disk(host, cache, blob, |host, cache, blob| {
        if cache.holds(host, blob) { Ok(None) } else { cache.begin(host, blob).map(Some) }
    });
    let Some(mut writing) = begun.await? else { return Ok(()) };
    let mut backoff = Backoff::new();
    loop {
        let before = writing.written;
        let failure = match part(host, session, blob, &mut writing).await {
            Ok(()) => break,
            Err(failure) => failure,
        };
        if writing.written - before >= BATCH as u64 {
            // Reset the backoff as long as there is progress.
            backoff = Backoff::new();
        }
        if let Err(failure) = backoff.after(&**host, failure).await {
            let _ = on_disk(host, cache, blob, |host, cache, _| {
                cache.abandon(host, writing);
                Ok(())
            })
            .await;
            return Err(failure);
        }
    }
    let finished = on_disk(host, cache, blob, |host, cache, blob| cache.finish(host, writing, blob)).await?;
    match finished {
        Finished::Kept => Ok(()),
        Finished::Wrong { found, written } => Err(wrong("layer", blob, &found, written)),
    }
}

/// Requests the rest of a layer once.
async fn part(
    host: &Arc<dyn Host>,
    session: &mut Session<'_>,
    blob: &Blob,
    writing: &mut Writing,
) -> Result<(), Failure> {
    if writing.written == blob.size {
        return Ok(());
    }
    let mut headers = HeaderMap::new();
    let mut skip = 0;
    if writing.written > 0 {
        let range = HeaderValue::from_str(&format!("bytes={}-", writing.written));
        headers.extend(range.ok().map(|range| (header::RANGE, range)));
    }
    let answer = session
        .get(&format!("blobs/{}", blob.digest), &headers)
        .await
        .map_err(|failure| Failure { text: format!("layer {}: {}", blob.digest, failure.text), ..failure })?;
    if answer.status() == StatusCode::OK {
        // Not every registry supports ranges: skip the part that was already received.
        skip = writing.written;
    } else {
        let range = answer.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
        if start != Some(writing.written) {
            return Err(Failure::permanent(format!(
                "layer {}: the registry sent a different range than requested",
                blob.digest
            )));
        }
    }
    let mut body = answer.into_body();
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let chunk = next(&mut body).await;
        let failed = match chunk {
            Ok(Some(chunk)) => {
                let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
                skip -= skipped as u64;
                batch.extend_from_slice(&chunk[skipped..]);
                if writing.written + batch.len() as u64 > blob.size {
                    let text = format!(
                        "layer {} is larger than the {} bytes in its manifest",
                        blob.digest, blob.size
                    );
                    return Err(Failure::permanent(text));
                }
                None
            }
            Ok(None) => Some(None),
            Err(failure) => Some(Some(failure)),
        };
        if batch.len() >= BATCH || failed.is_some() {
            flush(host, writing, &mut batch).await?;
        }
        match failed {
            None => {}
            Some(None) if writing.written == blob.size => return Ok(()),
            Some(failure) => {
                let why = failure.map_or_else(|| "the response ended".to_owned(), |failure| failure.text);
                let (have, size) = (writing.written, blob.size);
                return Err(Failure::temporary(format!(
                    "the download of layer {} was interrupted after {have} of {size} bytes: {why}",
                    blob.digest
                )));
            }
        }
    }
}

async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
    loop {
        let frame = tokio::time::timeout(STALL, body.frame())
            .await
            .map_err(|_| Failure::temporary(format!("timed out: no data for {STALL:?}")))?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(Failure::temporary(error.to_string())),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Writes on another thread, so that a probe does not wait for a slow disk.
async fn flush(host: &Arc<dyn Host>, writing: &mut Writing, batch: &mut Vec<u8>) -> Result<(), Failure> {
    if batch.is_empty() {
        return Ok(());
    }
    let bytes = std::mem::replace(batch, Vec::with_capacity(BATCH));
    let mut moved = writing.detach();
    let written = offload(&**host, move || {
        let written = moved.write(&bytes);
        (moved, written)
    })
    .await;
    let Some((moved, written)) = written else {
        return Err(Failure::local("writing a layer was interrupted"));
    };
    *writing = moved;
    written.map_err(|error| Failure::local(format!("failed to write a layer: {error}")))
}

async fn on_disk<T: Send + 'static>(
    host: &Arc<dyn Host>,
    cache: &Cache,
    blob: &Blob,
    job: impl FnOnce(&dyn Host, &Cache, &Blob) -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let (inner, cache, blob) = (host.clone(), cache.clone(), blob.clone());
    let name = cache.path(&blob.digest);
    offload(&**host, move || job(&*inner, &cache, &blob))
        .await
        .unwrap_or_else(|| Err(io::Error::other("interrupted")))
        .map_err(|error| Failure::local(format!("failed to store {}: {error}", name.display())))
}

fn wrong(what: &str, blob: &Blob, found: &Digest, size: u64) -> Failure {
    Failure::permanent(format!(
        "{what} {} does not match its digest: expected {} bytes, got {size} bytes with digest {found}",
        blob.digest, blob.size
    ))
}
