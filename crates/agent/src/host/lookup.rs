//! Names of other machines, looked up where that delays nothing else.
//!
//! A resolver without a name server takes its time, far longer than whoever asks waits. On the threads for blocking work
//! a few such lookups would keep files from being written; so each has a thread of its own, and a name only one.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

type Found = Result<Vec<IpAddr>, (io::ErrorKind, String)>;

/// The lookups under way, by name.
#[derive(Default)]
pub(super) struct Lookups(Arc<Mutex<HashMap<String, watch::Receiver<Option<Found>>>>>);

impl Lookups {
    /// The addresses of a name. Who comes while it is looked up already waits for the same answer.
    pub(super) async fn find(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.find_by(name, resolve).await
    }

    async fn find_by(
        &self,
        name: &str,
        resolve: impl FnOnce(&str) -> io::Result<Vec<IpAddr>> + Send + 'static,
    ) -> io::Result<Vec<IpAddr>> {
        let mut answer = self.begin(name, resolve)?;
        let found = answer.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        found
            .unwrap_or_else(|| Err((io::ErrorKind::Other, "the lookup broke off".into())))
            .map_err(|(kind, why)| io::Error::new(kind, why))
    }

    fn begin(
        &self,
        name: &str,
        resolve: impl FnOnce(&str) -> io::Result<Vec<IpAddr>> + Send + 'static,
    ) -> io::Result<watch::Receiver<Option<Found>>> {
        let mut under_way = self.under_way();
        // One whose thread broke off is not waited for.
        if let Some(answer) = under_way.get(name).filter(|answer| answer.has_changed().is_ok()) {
            return Ok(answer.clone());
        }
        let (sender, answer) = watch::channel(None);
        let (lookups, asked) = (Self(self.0.clone()), name.to_owned());
        std::thread::Builder::new().name("lookup".into()).spawn(move || {
            let found = resolve(&asked).map_err(|error| (error.kind(), error.to_string()));
            // First forgotten, then told: who asks after the answer wants a new one.
            lookups.under_way().remove(&asked);
            let _ = sender.send(Some(found));
        })?;
        under_way.insert(name.to_owned(), answer.clone());
        Ok(answer)
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<Option<Found>>>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|found: SocketAddr| found.ip()).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    #[test]
    fn names_that_nobody_answers_keep_nobody_from_blocking_work() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let lookups = Lookups::default();
            let asked = Arc::new(AtomicUsize::new(0));
            let find = |name: &'static str| {
                let (asked, (answer, wait)) = (asked.clone(), mpsc::channel::<()>());
                let found = lookups.find_by(name, move |_| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    let _ = wait.recv();
                    Err(io::ErrorKind::NotFound.into())
                });
                (answer, Box::pin(found))
            };
            let (first, mut a) = find("a");
            let (_second, mut same) = find("a");
            let (third, mut b) = find("b");
            tokio::select! {
                biased;
                _ = &mut a => unreachable!("nobody answers"),
                _ = &mut same => unreachable!("nobody answers"),
                _ = &mut b => unreachable!("nobody answers"),
                done = tokio::task::spawn_blocking(|| "written") => assert_eq!(done.unwrap(), "written"),
            }
            drop((first, third));
            assert_eq!(a.await.unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(same.await.unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(b.await.unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(asked.load(Ordering::SeqCst), 2, "one lookup for each name");
            assert!(lookups.under_way().is_empty());
            let again = lookups.find_by("a", |_| Ok(vec![[192, 0, 2, 1].into()])).await;
            assert_eq!(again.unwrap(), [IpAddr::from([192, 0, 2, 1])], "an answer is for those who waited");
            assert!(lookups.find_by("c", |_| panic!("on the test's command")).await.is_err());
            assert!(lookups.find_by("c", |_| Ok(vec![])).await.is_ok(), "and stands in nobody's way");
        });
    }
}
