//! Keeps the target true: finds the kubeconfig, reads the Secrets, and does so again whenever one of them changes.

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};

use super::{
    Backoff,
    downstream::{self, Downstream},
    kubeconfigs::{Found, Kubeconfigs},
    secrets::{self, NAMESPACE, Step, TOKEN_SECRET},
    target::{self, Target},
    tell::Tell,
};
use crate::{
    cluster_ca::ClusterCa,
    host::Host,
    kubeconfig::{self, Access},
};

/// Changes come in groups: a Secret is made, then filled in.
const COALESCE: Duration = Duration::from_millis(100);

/// The value that [`super::tunnel`] goes by.
pub(super) type Known = watch::Sender<Option<Arc<Target>>>;

/// See the module.
pub(super) struct Follow {
    host: Arc<dyn Host>,
    kubeconfigs: Kubeconfigs,
    tell: Arc<Tell>,
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
    pub(super) fn new(host: Arc<dyn Host>, paths: Vec<PathBuf>, tell: Arc<Tell>) -> Self {
        let cluster_ca = ClusterCa::default();
        Self { kubeconfigs: Kubeconfigs::new(host.clone(), paths), host, tell, cluster_ca }
    }

    pub(super) fn report_ca(&mut self, cluster_ca: ClusterCa) {
        self.cluster_ca = cluster_ca;
    }

    /// Runs for ever.
    pub(super) async fn run(&self, known: &Known) {
        let mut found = None;
        loop {
            let current = match found.take() {
                Some(found) => found,
                None => {
                    put(known, None);
                    let names = self.kubeconfigs.names();
                    self.tell.waits(Some(format!("waits for {names}, which only control-plane nodes have")));
                    self.kubeconfigs.appeared().await
                }
            };
            tokio::select! {
                never = self.serve(&current, known) => match never {},
                other = self.kubeconfigs.changed(&current) => found = other,
            }
        }
    }

    /// Follows one kubeconfig for ever. Trouble leaves the target as it is: it was true when it was last seen, and the
    /// tunnel may well outlive it.
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
            self.tell.waits(Some(match error {
                Error::Kubeconfig(_) | Error::Endpoint(_) => format!("{}: {error}", found.path.display()),
                Error::Downstream(downstream::Error::NoAccount) => error.to_string(),
                Error::Downstream(_) => format!("cannot read the Secrets of {NAMESPACE}: {error}"),
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
                    self.tell.waits(None);
                    // Before the tunnel: the management plane compares it with what the tunnel registers.
                    self.cluster_ca.learn(&ca);
                    let (address, ca) = (address.clone(), ca.clone());
                    put(known, Some(Target { credentials, address, account_token, ca }));
                }
                Step::AwaitCredentials => {
                    put(known, None);
                    self.tell.waits(Some(format!("waits for a Secret {NAMESPACE}/cattle-credentials-*")));
                }
                Step::MakeToken => {
                    api.make_token().await?;
                    self.tell
                        .waits(Some(format!("waits for the token in Secret {NAMESPACE}/{TOKEN_SECRET}")));
                }
                Step::AwaitToken => {
                    self.tell
                        .waits(Some(format!("waits for the token in Secret {NAMESPACE}/{TOKEN_SECRET}")));
                }
                Step::ForeignToken => {
                    self.tell.waits(Some(format!(
                        "Secret {NAMESPACE}/{TOKEN_SECRET} is not a token of ServiceAccount {NAMESPACE}/{}; delete it",
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

/// Tells of a change only if it is one.
fn put(known: &Known, target: Option<Target>) {
    known.send_if_modified(|current| {
        if current.as_deref() == target.as_ref() {
            return false;
        }
        *current = target.map(Arc::new);
        true
    });
}
