//! Looks for this node's admin kubeconfig. It polls instead of watching, because one failed open every few seconds is
//! cheap for a worker.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use crate::host::Host;

/// Poll more often after the start, when a node gets its role.
const EAGER: Duration = Duration::from_secs(60);
const EAGER_PERIOD: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(5);

/// The possible paths.
pub(super) struct Kubeconfigs {
    host: Arc<dyn Host>,
    paths: Vec<PathBuf>,
}

/// An existing kubeconfig.
#[derive(PartialEq, Eq)]
pub(super) struct Found {
    /// Its path.
    pub(super) path: PathBuf,
    /// Its content.
    pub(super) text: String,
}

impl Kubeconfigs {
    pub(super) fn new(host: Arc<dyn Host>, paths: Vec<PathBuf>) -> Self {
        Self { host, paths }
    }

    /// The paths, for messages.
    pub(super) fn names(&self) -> String {
        self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
    }

    /// Waits until one exists.
    pub(super) async fn appeared(&self) -> Found {
        let start = Instant::now();
        loop {
            if let Ok(Some(found)) = self.look() {
                return found;
            }
            sleep(if start.elapsed() < EAGER { EAGER_PERIOD } else { PERIOD }).await;
        }
    }

    /// Waits until it changes or is removed.
    pub(super) async fn changed(&self, from: &Found) -> Option<Found> {
        loop {
            sleep(PERIOD).await;
            match self.look() {
                Ok(Some(found)) if found == *from => {}
                Ok(other) => return other,
                // It is being written, or the disk fails: continue with the content that was read before.
                Err(_) => {}
            }
        }
    }

    /// The first existing path.
    fn look(&self) -> io::Result<Option<Found>> {
        for path in &self.paths {
            match self.host.read(path) {
                Ok(bytes) => {
                    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
                    // It is truncated before it is written.
                    if text.trim().is_empty() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    return Ok(Some(Found { path: path.clone(), text }));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Attr, MemoryHost, testing::NoProgram};
    use std::path::Path;

    #[tokio::test(start_paused = true)]
    async fn creation_change_and_removal_of_a_kubeconfig_are_noticed() {
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram));
        let path = Path::new("/etc/rancher/rke2/rke2.yaml");
        let write = |text: &str| {
            host.make_dirs(path.parent().unwrap(), 0o755).unwrap();
            host.replace(path, text.as_bytes(), Attr { mode: 0o600, owner: None }).unwrap();
        };
        let paths = super::super::ADMIN_KUBECONFIGS.iter().map(PathBuf::from).collect();
        let kubeconfigs = Kubeconfigs::new(host.clone(), paths);
        let later = async {
            sleep(Duration::from_secs(100)).await;
            write("one");
        };
        let start = Instant::now();
        let (found, ()) = tokio::join!(kubeconfigs.appeared(), later);
        assert_eq!((found.path.as_path(), found.text.as_str()), (path, "one"));
        assert!(start.elapsed() <= Duration::from_secs(105));

        let later = async {
            sleep(Duration::from_secs(20)).await;
            write("");
            sleep(Duration::from_secs(20)).await;
            write("two");
        };
        let start = Instant::now();
        let (found, ()) = tokio::join!(kubeconfigs.changed(&found), later);
        let found = found.unwrap();
        assert_eq!(found.text, "two", "an incomplete file is not a change");
        assert!(start.elapsed() >= Duration::from_secs(40) && start.elapsed() <= Duration::from_secs(45));

        host.remove_file(path).unwrap();
        assert!(kubeconfigs.changed(&found).await.is_none());
    }
}
