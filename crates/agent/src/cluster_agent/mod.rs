//! The reverse tunnel of a control plane node.
//!
//! A control plane node has the cluster's admin kubeconfig. With it, this module finds the manager of the cluster
//! (Secret
//! `cattle-system/cattle-credentials-*` with the annotation for this agent), gets a token of the account
//! `cattle-system/cattle`, registers both at `/v3/connect` with the machine's own credential, and then opens the
//! connections that the management plane requests. A node without such a kubeconfig only checks a path every few
//! seconds. such a kubeconfig pays a look at a path every few seconds.
//!
//! Two loops share one value, the [`target::Target`]: [`follow`] keeps it up to date, [`tunnel`] keeps a tunnel to it
//! open. They fail independently: a tunnel stays open when the node's own API restarts.
//!
//! [`secrets`] and [`target`] are pure.

mod downstream;
mod follow;
mod kubeconfigs;
mod secrets;
mod target;
mod tunnel;
mod tunnel_status;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{cluster_ca::ClusterCa, host::Host, status::Board};

/// The admin kubeconfigs of the distributions.
pub const ADMIN_KUBECONFIGS: &[&str] = &["/etc/rancher/k3s/k3s.yaml", "/etc/rancher/rke2/rke2.yaml"];

/// Short, because a restarted server is available again within a second.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// The part of the agent that keeps the tunnel open.
pub struct ClusterAgent {
    follow: follow::Follow,
    tunnel: tunnel::Tunnel,
}

impl ClusterAgent {
    /// `kubeconfigs` are tried in order. The connection file contains the address and CA of the management plane and this
    /// machine's credential, which authenticates the tunnel; with `strict`, no other CA is trusted.
    pub fn new(
        host: Arc<dyn Host>,
        board: Arc<Board>,
        kubeconfigs: Vec<PathBuf>,
        connection_file: PathBuf,
        strict: bool,
    ) -> Self {
        let status = Arc::new(tunnel_status::TunnelStatus::new(host.clone(), board));
        Self {
            follow: follow::Follow::new(host.clone(), kubeconfigs, status.clone()),
            tunnel: tunnel::Tunnel::new(host, connection_file, strict, status),
        }
    }

    /// Reports the cluster's CA there.
    #[must_use]
    pub fn reporting_to(mut self, cluster_ca: ClusterCa) -> Self {
        self.follow.report_ca(cluster_ca);
        self
    }

    /// Runs forever. Dropping the future closes the tunnel.
    pub async fn run(self) {
        let (known, target) = watch::channel(None);
        tokio::join!(self.follow.run(&known), self.tunnel.run(target));
    }
}

/// Pauses between attempts.
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

    /// Half fixed, half random, so that many nodes do not reconnect at the same time.
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
    async fn pauses_grow_from_zero_to_ten_seconds() {
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
