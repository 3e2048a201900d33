//! One watch of a cache: lists, follows, and begins again after an error.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use tokio_util::sync::CancellationToken;

use super::objects::{Sources, revision_of};
use super::{Cache, Cached};
use crate::ObjectKey;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// A watch and what it covers.
pub(super) struct Watch {
    pub(super) source: Sources,
    /// The only object that it covers, if it is limited to one.
    pub(super) scope: Option<ObjectKey>,
}

impl<K: Cached> Cache<K> {
    pub(super) async fn follow(
        self,
        api: Api<K>,
        config: watcher::Config,
        watch: Watch,
        stop: CancellationToken,
    ) {
        let run = async {
            let mut retry = FIRST_RETRY;
            loop {
                let mut initial = vec![];
                let mut stream = pin!(watcher::watcher(api.clone(), config.clone()));
                while let Some(event) = stream.next().await {
                    match event {
                        Ok(event) => {
                            retry = FIRST_RETRY;
                            self.on_event(event, &mut initial, &watch);
                        }
                        Err(error) => {
                            tracing::debug!(%error, kind = std::any::type_name::<K>(), "watch interrupted");
                            tokio::time::sleep(retry).await;
                            retry = (retry * 2).min(LAST_RETRY);
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = run => {}
            () = stop.cancelled() => {}
        }
    }

    pub(super) fn on_event(&self, event: Event<K>, initial: &mut Vec<K>, watch: &Watch) {
        match event {
            Event::Init => initial.clear(),
            Event::InitApply(object) => initial.push(object),
            Event::InitDone => {
                self.replace(std::mem::take(initial), watch.source, watch.scope.as_ref());
                if let (Some(named), Some(key)) = (&self.inner.named, &watch.scope) {
                    named.listed(key);
                }
            }
            Event::Apply(object) => {
                let revision = revision_of(&object);
                self.upsert(object, watch.source);
                self.seen(revision);
            }
            Event::Delete(object) => {
                let revision = revision_of(&object);
                self.remove(&ObjectKey::of(&object), watch.source);
                self.seen(revision);
            }
        }
    }
}
