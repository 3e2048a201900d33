//! The reverse tunnel of a control-plane node.
//!
//! A node that serves a cluster's API has that cluster's admin kubeconfig. With it this part learns who manages the
//! cluster (Secret `cattle-system/cattle-credentials-*`, with an annotation that asks for this), gets a token of the account `cattle-system/cattle`, tells the
//! management plane both through `/v3/connect`, under the machine's own credential, and from then on opens the connections that it asks for. A node without
//! such a kubeconfig pays a look at a path every few seconds.
//!
//! Two loops share one value, the [`target::Target`]: [`follow`] keeps it true, [`tunnel`] keeps a tunnel to it. Either
//! may be in trouble without disturbing the other: a tunnel outlives a restart of the node's own API.
//!
//! [`secrets`] and [`target`] are pure.

mod downstream;
mod follow;
mod kubeconfigs;
mod secrets;
mod target;
mod tell;
mod tunnel;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{cluster_ca::ClusterCa, host::Host, status::Board};

/// Where the distributions keep their admin kubeconfig.
pub const ADMIN_KUBECONFIGS: &[&str] = &["/etc/rancher/k3s/k3s.yaml", "/etc/rancher/rke2/rke2.yaml"];

/// Short, because a server that is started again is back within a second.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// The part of the agent that keeps the tunnel.
pub struct ClusterAgent {
    follow: follow::Follow,
    tunnel: tunnel::Tunnel,
}

impl ClusterAgent {
    /// `kubeconfigs` are tried in order. The connection file holds the address and the authority of the management plane
    /// and this machine's own credential, which the tunnel is opened with; `strict` forbids to trust any other authority.
    pub fn new(
        host: Arc<dyn Host>,
        board: Arc<Board>,
        kubeconfigs: Vec<PathBuf>,
        connection_file: PathBuf,
        strict: bool,
    ) -> Self {
        let tell = Arc::new(tell::Tell::new(host.clone(), board));
        Self {
            follow: follow::Follow::new(host.clone(), kubeconfigs, tell.clone()),
            tunnel: tunnel::Tunnel::new(host, connection_file, strict, tell),
        }
    }

    /// Has the cluster's authority reported there.
    #[must_use]
    pub fn reporting_to(mut self, cluster_ca: ClusterCa) -> Self {
        self.follow.report_ca(cluster_ca);
        self
    }

    /// Runs for ever. Dropping it closes the tunnel.
    pub async fn run(self) {
        let (known, target) = watch::channel(None);
        tokio::join!(self.follow.run(&known), self.tunnel.run(target));
    }
}

/// How long to wait before the next attempt.
struct Backoff {
    host: Arc<dyn Host>,
    next: Duration,
}

impl Backoff {
    fn new(host: Arc<dyn Host>) -> Self {
        Self { host, next: FIRST_PAUSE }
    }

    fn reset(&mut self) {
        self.next = FIRST_PAUSE;
    }

    /// Half fixed, half random: many nodes must not come back in one wave.
    fn pause(&mut self) -> Duration {
        let half = self.next / 2;
        self.next = (self.next * 2).min(LAST_PAUSE);
        half + half.mul_f64(self.host.random() as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{MemoryHost, testing::NoProgram};

    #[tokio::test]
    async fn pauses_grow_to_ten_seconds_and_never_vanish() {
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 7, NoProgram));
        let mut backoff = Backoff::new(host);
        for full in [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000] {
            let pause = backoff.pause();
            let full = Duration::from_millis(full);
            assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= FIRST_PAUSE);
    }
}
