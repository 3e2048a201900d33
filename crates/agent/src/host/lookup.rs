//! Names of other machines, looked up where that delays nothing else.
//!
//! A resolver without a name server takes its time, far longer than whoever asks waits. On the threads for blocking work
//! a few such lookups would keep files from being written; so each has a thread of its own, and a name only one. An
//! answer that comes when nobody waits any more is for whoever asks next: a resolver that is always slower than its
//! callers are patient would otherwise never be of use.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::watch;

/// How long an answer that came too late is good.
const KEPT: Duration = Duration::from_secs(60);

type Found = Result<Vec<IpAddr>, (io::ErrorKind, String)>;
type Answer = watch::Receiver<Option<Found>>;

/// The lookups under way and those that took too long, by name.
#[derive(Default)]
pub(super) struct Lookups(Arc<Mutex<HashMap<String, Lookup>>>);

struct Lookup {
    answer: Answer,
    /// When it came, if nobody waited for it.
    late: Option<Instant>,
}

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
    ) -> io::Result<Answer> {
        let mut known = self.known();
        // One whose thread broke off is not waited for.
        known.retain(|_, lookup| match lookup.late {
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
            // The map's own is the last when everybody has gone.
            let late = found.is_ok() && sender.receiver_count() <= 1;
            match known.get_mut(&asked) {
                Some(lookup) if late => lookup.late = Some(Instant::now()),
                // Who asks after the answer wants a new one.
                _ => drop(known.remove(&asked)),
            }
            let _ = sender.send(Some(found));
        })?;
        known.insert(name.to_owned(), Lookup { answer: answer.clone(), late: None });
        Ok(answer)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Lookup>> {
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
            assert!(lookups.known().is_empty());
            let again = lookups.find_by("a", |_| Ok(vec![[192, 0, 2, 1].into()])).await;
            assert_eq!(again.unwrap(), [IpAddr::from([192, 0, 2, 1])], "an answer is for those who waited");
            assert!(lookups.find_by("c", |_| panic!("on the test's command")).await.is_err());
            assert!(lookups.find_by("c", |_| Ok(vec![])).await.is_ok(), "and stands in nobody's way");
        });
    }
    #[tokio::test]
    async fn an_answer_that_nobody_waited_for_is_for_whoever_asks_next() {
        let lookups = Lookups::default();
        let late = |name: &'static str, found: io::Result<Vec<IpAddr>>| {
            let (lookups, (answer, wait)) = (&lookups, mpsc::channel::<()>());
            async move {
                let asked = lookups.find_by(name, move |_| {
                    let _ = wait.recv();
                    found
                });
                assert!(tokio::time::timeout(Duration::from_millis(1), asked).await.is_err(), "too slow");
                drop(answer);
                // Nothing tells the end of what nobody waits for.
                let deadline = Instant::now() + Duration::from_secs(60);
                while lookups.known().get(name).is_some_and(|lookup| lookup.late.is_none()) {
                    assert!(Instant::now() < deadline, "it never comes");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let (first, second) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        late("a", Ok(vec![first])).await;
        for _ in 0..2 {
            let found = lookups.find_by("a", move |_| Ok(vec![second])).await;
            assert_eq!(found.unwrap(), [first], "it is there already");
        }
        // Not for ever.
        let long_ago = Instant::now().checked_sub(KEPT).unwrap();
        lookups.known().get_mut("a").unwrap().late = Some(long_ago);
        assert_eq!(lookups.find_by("a", move |_| Ok(vec![second])).await.unwrap(), [second]);
        // That there is none may have been the reason of its being late.
        late("b", Err(io::ErrorKind::NotFound.into())).await;
        assert_eq!(lookups.find_by("b", move |_| Ok(vec![second])).await.unwrap(), [second]);
    }
}
