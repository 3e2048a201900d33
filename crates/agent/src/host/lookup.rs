//! DNS lookups that do not block anything else.
//!
//! A resolver without a reachable name server can take much longer than its caller waits. A few such lookups would
//! occupy all threads for blocking work, so each lookup has its own thread, and there is only one per name. A result
//! that arrives after its caller timed out is kept for the next caller: otherwise a resolver that is always slower than
//! the timeout would never be useful.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::watch;

/// How long a result that arrived too unclaimed is kept.
const KEPT: Duration = Duration::from_secs(60);

type Found = Result<Vec<IpAddr>, (io::ErrorKind, String)>;
type Answer = watch::Receiver<Option<Found>>;

/// Running lookups, and results that arrived too unclaimed, by name.
#[derive(Default)]
pub(super) struct Lookups(Arc<Mutex<HashMap<String, Lookup>>>);

struct Lookup {
    answer: Answer,
    /// When the result arrived, if no caller was waiting.
    unclaimed: Option<Instant>,
}

impl Lookups {
    /// The addresses of a name. Callers of a running lookup share its result.
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
            .unwrap_or_else(|| Err((io::ErrorKind::Other, "the lookup failed".into())))
            .map_err(|(kind, why)| io::Error::new(kind, why))
    }

    fn begin(
        &self,
        name: &str,
        resolve: impl FnOnce(&str) -> io::Result<Vec<IpAddr>> + Send + 'static,
    ) -> io::Result<Answer> {
        let mut known = self.known();
        // A lookup whose thread panicked is replaced.
        known.retain(|_, lookup| match lookup.unclaimed {
            None => lookup.answer.has_changed().is_ok(),
            Some(since) => since.elapsed() < KEPT,
        });
        if let Some(lookup) = known.get(name) {
            return Ok(lookup.answer.clone());
        }
        let (sender, answer) = watch::channel(None);
        let (lookups, asked) = (Self(self.0.clone()), name.to_owned());
        std::thread::Builder::new().name("lookup".into()).spawn(move || {
            let found = resolve(&asked).map_err(|error| (error.kind(), error.to_string()));
            let mut known = lookups.known();
            // The map holds the only receiver when all callers are gone.
            let unclaimed = found.is_ok() && sender.receiver_count() <= 1;
            match known.get_mut(&asked) {
                Some(lookup) if unclaimed => lookup.unclaimed = Some(Instant::now()),
                // A call after this result needs a new lookup.
                _ => drop(known.remove(&asked)),
            }
            let _ = sender.send(Some(found));
        })?;
        known.insert(name.to_owned(), Lookup { answer: answer.clone(), unclaimed: None });
        Ok(answer)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Lookup>> {
        // The lock is never poisoned.
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
    fn lookups_that_get_no_response_do_not_delay_blocking_work() {
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
                _ = &mut a => unreachable!("there is no response"),
                _ = &mut same => unreachable!("there is no response"),
                _ = &mut b => unreachable!("there is no response"),
                done = tokio::task::spawn_blocking(|| "written") => assert_eq!(done.unwrap(), "written"),
            }
            drop((first, third));
            assert_eq!(a.await.unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(same.await.unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(b.await.unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(asked.load(Ordering::SeqCst), 2, "one lookup per name");
            assert!(lookups.known().is_empty());
            let again = lookups.find_by("a", |_| Ok(vec![[192, 0, 2, 1].into()])).await;
            assert_eq!(again.unwrap(), [IpAddr::from([192, 0, 2, 1])], "a result is not cached");
            assert!(lookups.find_by("c", |_| panic!("requested by the test")).await.is_err());
            assert!(
                lookups.find_by("c", |_| Ok(vec![])).await.is_ok(),
                "a panic does not prevent the next lookup"
            );
        });
    }
    #[tokio::test]
    async fn a_late_result_is_kept_for_the_next_caller() {
        let lookups = Lookups::default();
        let unclaimed = |name: &'static str, found: io::Result<Vec<IpAddr>>| {
            let (lookups, (answer, wait)) = (&lookups, mpsc::channel::<()>());
            async move {
                let asked = lookups.find_by(name, move |_| {
                    let _ = wait.recv();
                    found
                });
                assert!(tokio::time::timeout(Duration::from_millis(1), asked).await.is_err(), "too slow");
                drop(answer);
                // There is no event for a result without a caller.
                let deadline = Instant::now() + Duration::from_secs(60);
                while lookups.known().get(name).is_some_and(|lookup| lookup.unclaimed.is_none()) {
                    assert!(Instant::now() < deadline, "timed out waiting for the result");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let (first, second) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        unclaimed("a", Ok(vec![first])).await;
        for _ in 0..2 {
            let found = lookups.find_by("a", move |_| Ok(vec![second])).await;
            assert_eq!(found.unwrap(), [first], "the kept result is returned");
        }
        // It is not kept forever.
        let long_ago = Instant::now().checked_sub(KEPT).unwrap();
        lookups.known().get_mut("a").unwrap().unclaimed = Some(long_ago);
        assert_eq!(lookups.find_by("a", move |_| Ok(vec![second])).await.unwrap(), [second]);
        // Errors are not kept, because they can be the cause of the delay.
        unclaimed("b", Err(io::ErrorKind::NotFound.into())).await;
        assert_eq!(lookups.find_by("b", move |_| Ok(vec![second])).await.unwrap(), [second]);
    }
}
