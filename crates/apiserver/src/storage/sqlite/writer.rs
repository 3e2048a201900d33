//! The writer thread: takes the queued writes, checks them in order, commits once, then answers and publishes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::SqliteOptions;
use super::file::{Database, failure};
use crate::storage::stage::Stage;
use crate::storage::{Index, StorageError, Version, Write};

/// Larger transactions would only add latency.
const MAX_BATCH: usize = 256;
/// Keeps a batch well within a WAL of a few MiB.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// The pause between two steps of compression while nothing is written.
const SHRINK_PAUSE: Duration = Duration::from_millis(50);

type Answer<T> = oneshot::Sender<Result<T, StorageError>>;
type Judged = (Answer<Arc<Version>>, Result<Arc<Version>, StorageError>);

pub(super) enum Request {
    Write(Write, Answer<Arc<Version>>),
    Compact(u64, Answer<()>),
}

pub(super) struct Writer {
    pub(super) database: Database,
    pub(super) index: Arc<Index>,
    pub(super) options: SqliteOptions,
    pub(super) failure: Arc<Mutex<Option<StorageError>>>,
}

impl Writer {
    /// Runs until all senders are dropped.
    pub(super) fn run(self, inbox: &Receiver<Request>) {
        while let Some(first) = self.next(inbox) {
            let mut writes = Vec::new();
            let mut compactions = Vec::new();
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(request) = next {
                match request {
                    Request::Write(write, answer) => {
                        bytes += size(&write);
                        writes.push((write, answer));
                    }
                    Request::Compact(revision, answer) => compactions.push((revision, answer)),
                }
                if writes.len() >= MAX_BATCH || bytes >= MAX_BATCH_BYTES {
                    break;
                }
                next = inbox.try_recv().ok();
            }
            if !writes.is_empty() {
                self.commit(writes);
            }
            for (revision, answer) in compactions {
                let _ = answer.send(self.compact(revision));
            }
            if let Some(revision) = self.index.compaction_due(self.options.clock.now())
                && let Err(error) = self.compact(revision)
            {
                tracing::warn!(%error, "failed to compact the history; will retry");
            }
        }
    }

    /// The next request; `None` when all senders are dropped. Between requests, old versions are compressed in small
    /// steps, which leave the processor to others: after a start, nearly all of a large store has to be compressed.
    fn next(&self, inbox: &Receiver<Request>) -> Option<Request> {
        while self.index.shrink() {
            match inbox.recv_timeout(SHRINK_PAUSE) {
                Ok(request) => return Some(request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        inbox.recv().ok()
    }

    /// Commits one batch. Every answer, also a rejection, waits for the commit, because it may depend on a write of the
    /// same batch.
    fn commit(&self, writes: Vec<(Write, Answer<Arc<Version>>)>) {
        let now = self.options.clock.now();
        let mut stage = Stage::new(&self.index);
        let mut judged: Vec<Judged> = Vec::with_capacity(writes.len());
        let mut trouble = self.database.begin().err();
        for (write, answer) in writes {
            let verdict = stage.judge(&write, now);
            if let (Ok(event), None) = (&verdict, &trouble) {
                trouble = self.database.store(event).err();
            }
            judged.push((answer, verdict.map(|event| event.version.clone())));
        }
        if trouble.is_none() && !stage.is_empty() {
            let fault = self.options.commit_fault.as_ref().map_or(Ok(()), |fault| fault());
            let began = Instant::now();
            let result = match fault {
                Ok(()) => self.database.commit().map_err(|error| failure(&error)),
                Err(text) => Err(StorageError::Backend(text.into())),
            };
            match result {
                Ok(()) => {
                    self.index.commits().duration.observe(began.elapsed().as_secs_f64());
                    stage.publish();
                    *self.failure.lock() = None;
                    judged.into_iter().for_each(answer_one);
                }
                Err(error) => self.fail(judged, error),
            }
        } else if let Some(error) = trouble {
            self.fail(judged, failure(&error));
        } else {
            self.database.rollback();
            judged.into_iter().for_each(answer_one);
        }
    }

    fn fail(&self, judged: Vec<Judged>, error: StorageError) {
        self.database.rollback();
        tracing::error!(%error, writes = judged.len(), "commit failed, nothing was stored");
        *self.failure.lock() = Some(error.clone());
        for (answer, _) in judged {
            let _ = answer.send(Err(error.clone()));
        }
    }

    fn compact(&self, revision: u64) -> Result<(), StorageError> {
        let from = self.index.compacted();
        let to = revision.min(self.index.revision());
        if to <= from {
            return Ok(());
        }
        if let Err(error) = self.database.compact(from, to) {
            self.database.rollback();
            return Err(failure(&error));
        }
        self.index.forget(to);
        Ok(())
    }
}

fn answer_one((answer, verdict): Judged) {
    // A caller that is gone does not undo its write.
    let _ = answer.send(verdict);
}

fn size(write: &Write) -> usize {
    match &write.change {
        crate::storage::Change::Put(encoded) => encoded.json.len(),
        crate::storage::Change::Delete { .. } => 0,
    }
}
