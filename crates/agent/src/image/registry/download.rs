//! Fetches documents and blobs, again where that may help, and never believes what it was not asked to believe.

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

/// Tries of one request, the first included.
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A registry may ask for longer; then the next pass of the plan is soon enough.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// A body from which nothing comes for this long is dead.
const STALL: Duration = Duration::from_secs(60);
/// How much is gathered before the disk is troubled.
const BATCH: usize = 512 * 1024;

/// Pauses between tries.
struct Backoff {
    left: u32,
    pause: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self { left: TRIES - 1, pause: FIRST_PAUSE }
    }

    /// Waits for the next try, or says that there is none.
    async fn after(&mut self, host: &dyn Host, failure: Failure) -> Result<(), Failure> {
        let Some(asked) = failure.retry else { return Err(failure) };
        if self.left == 0 {
            return Err(Failure::last(format!("{} (after {TRIES} tries)", failure.text)));
        }
        self.left -= 1;
        let jitter = self.pause.mul_f64(host.random() as f64 / u64::MAX as f64 / 2.0);
        let pause = (self.pause + jitter).max(asked.unwrap_or_default()).min(LONGEST_PAUSE);
        tracing::debug!("pulling again in {pause:?}: {}", failure.text);
        tokio::time::sleep(pause).await;
        self.pause *= 2;
        Ok(())
    }
}

/// A manifest by tag or digest; what comes by digest is verified.
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
        return Err(Failure::last(format!(
            "manifest {wanted} should have digest {expected}, but has {found}"
        )));
    }
    Ok(bytes)
}

/// A small blob, into memory.
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

/// A layer, to disk. A connection that breaks is taken up where it broke.
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
            // As long as something comes, there is hope.
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

/// One request for the rest of a layer.
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
        // Not everybody understands ranges: read again what is there already.
        skip = writing.written;
    } else {
        let range = answer.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
        if start != Some(writing.written) {
            return Err(Failure::last(format!(
                "layer {}: another part was sent than asked for",
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
                        "layer {} is longer than the {} bytes it should have",
                        blob.digest, blob.size
                    );
                    return Err(Failure::last(text));
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
                let why = failure.map_or_else(|| "it ended".to_owned(), |failure| failure.text);
                let (have, size) = (writing.written, blob.size);
                return Err(Failure::passing(format!(
                    "layer {} broke off after {have} of {size} bytes: {why}",
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
            .map_err(|_| Failure::passing(format!("nothing came for {STALL:?}")))?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(Failure::passing(error.to_string())),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Writes where it delays nobody: a probe must not wait for a slow disk.
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
    let Some((moved, written)) = written else { return Err(Failure::ours("writing a layer broke off")) };
    *writing = moved;
    written.map_err(|error| Failure::ours(format!("cannot write a layer: {error}")))
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
        .unwrap_or_else(|| Err(io::Error::other("broke off")))
        .map_err(|error| Failure::ours(format!("cannot keep {}: {error}", name.display())))
}

fn wrong(what: &str, blob: &Blob, found: &Digest, size: u64) -> Failure {
    Failure::last(format!(
        "{what} {} should have {} bytes of that digest, but {size} bytes with digest {found} came",
        blob.digest, blob.size
    ))
}
