//! Keeps the target up to date: finds the kubeconfig, reads the Secrets, and repeats this whenever one of them changes.

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};

use super::{
    Backoff,
    downstream::{self, Downstream},
    kubeconfigs::{Found, Kubeconfigs},
    secrets::{self, NAMESPACE, Step, TOKEN_SECRET},
    target::{self, Target},
    tunnel_status::TunnelStatus,
};
use crate::{
    cluster_ca::ClusterCa,
    host::Host,
    kubeconfig::{self, Access},
};

/// Changes come in groups: a Secret is created and then filled in.
const COALESCE: Duration = Duration::from_millis(100);

/// The current target, which [`super::tunnel`] uses.
pub(super) type Known = watch::Sender<Option<Arc<Target>>>;

/// See the module.
pub(super) struct Follow {
    host: Arc<dyn Host>,
    kubeconfigs: Kubeconfigs,
    status: Arc<TunnelStatus>,
    cluster_ca: ClusterCa,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    Kubeconfig(#[from] kubeconfig::Error),
    #[error("{0}")]
    Endpoint(#[from] target::EndpointError),
    #[error("{0}")]
    Downstream(#[from] downstream::Error),
}

impl Follow {
    pub(super) fn new(host: Arc<dyn Host>, paths: Vec<PathBuf>, status: Arc<TunnelStatus>) -> Self {
        let cluster_ca = ClusterCa::default();
        Self { kubeconfigs: Kubeconfigs::new(host.clone(), paths), host, status, cluster_ca }
    }

    pub(super) fn report_ca(&mut self, cluster_ca: ClusterCa) {
        self.cluster_ca = cluster_ca;
    }

    /// Runs forever.
    pub(super) async fn run(&self, known: &Known) {
        let mut found = None;
        loop {
            let current = match found.take() {
                Some(found) => found,
                None => {
                    put(known, None);
                    let names = self.kubeconfigs.names();
                    self.status.set_waiting(Some(format!(
                        "waiting for {names}, which exists only on control plane nodes"
                    )));
                    self.kubeconfigs.appeared().await
                }
            };
            tokio::select! {
                never = self.serve(&current, known) => match never {},
                other = self.kubeconfigs.changed(&current) => found = other,
            }
        }
    }

    /// Follows one kubeconfig forever. Errors do not change the target: it was valid when it was last read, and the
    /// tunnel may still work.
    async fn serve(&self, found: &Found, known: &Known) -> Infallible {
        let mut backoff = Backoff::new(self.host.clone());
        loop {
            let error = match kubeconfig::parse(&found.text) {
                Ok(access) => match self.follow(&access, known, &mut backoff).await {
                    Ok(never) => match never {},
                    Err(error) => error,
                },
                Err(error) => error.into(),
            };
            self.status.set_waiting(Some(match error {
                Error::Kubeconfig(_) | Error::Endpoint(_) => format!("{}: {error}", found.path.display()),
                Error::Downstream(downstream::Error::NoAccount) => error.to_string(),
                Error::Downstream(_) => {
                    format!("failed to read the Secrets in namespace {NAMESPACE}: {error}")
                }
            }));
            sleep(backoff.pause()).await;
        }
    }

    async fn follow(
        &self,
        access: &Access,
        known: &Known,
        backoff: &mut Backoff,
    ) -> Result<Infallible, Error> {
        let (address, ca) = target::endpoint(access)?;
        let api = Downstream::new(self.host.clone(), access)?;
        loop {
            let list = api.secrets().await?;
            match secrets::judge(list.items.as_deref().unwrap_or_default()) {
                Step::Register { credentials, account_token } => {
                    self.status.set_waiting(None);
                    // Reported before the tunnel opens: the management plane compares it with the CA that the tunnel
                    // registers.
                    self.cluster_ca.set(&ca);
                    let (address, ca) = (address.clone(), ca.clone());
                    put(known, Some(Target { credentials, address, account_token, ca }));
                }
                Step::AwaitCredentials => {
                    put(known, None);
                    self.status
                        .set_waiting(Some(format!("waiting for a Secret {NAMESPACE}/cattle-credentials-*")));
                }
                Step::MakeToken => {
                    api.make_token().await?;
                    self.status.set_waiting(Some(format!(
                        "waiting for the token in Secret {NAMESPACE}/{TOKEN_SECRET}"
                    )));
                }
                Step::AwaitToken => {
                    self.status.set_waiting(Some(format!(
                        "waiting for the token in Secret {NAMESPACE}/{TOKEN_SECRET}"
                    )));
                }
                Step::ForeignToken => {
                    self.status.set_waiting(Some(format!(
                        "Secret {NAMESPACE}/{TOKEN_SECRET} is not a token of ServiceAccount {NAMESPACE}/{}; delete the Secret",
                        secrets::ACCOUNT
                    )));
                }
            }
            api.changed(&list.metadata.resource_version).await?;
            backoff.reset();
            sleep(COALESCE).await;
        }
    }
}

/// Notifies only if the value changed.
fn put(known: &Known, target: Option<Target>) {
    known.send_if_modified(|current| {
        if current.as_deref() == target.as_ref() {
            return false;
        }
        *current = target.map(Arc::new);
        true
    });
}
