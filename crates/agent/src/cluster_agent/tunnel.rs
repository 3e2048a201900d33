//! Keeps a tunnel to the target open, and opens the connections that the management plane requests.

use std::{future::Future, io, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use drover_tunnel::{
    Session,
    session::{Dial, Dialing, Io},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    Backoff,
    target::{Server, Target},
    tunnel_status::{State, TunnelStatus},
};
use crate::{
    config::{self, Connection},
    host::{BoxIo, Host},
    http::{self as client, Client, UrlError, tls},
    kubeconfig::{self, Access},
    redact::Redactor,
};

/// A tunnel that lasted this long resets the backoff.
const STEADY: Duration = Duration::from_secs(10);
/// The maximum length of messages from others.
const LONGEST_TEXT: usize = 300;

/// The future that runs a tunnel until it ends.
type Running = Pin<Box<dyn Future<Output = drover_tunnel::Error> + Send>>;

/// See the module.
pub(super) struct Tunnel {
    host: Arc<dyn Host>,
    connection_file: PathBuf,
    strict: bool,
    status: Arc<TunnelStatus>,
}

/// Why the tunnel cannot be opened.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    Config(#[from] config::Error),
    #[error("{0}")]
    Kubeconfig(#[from] kubeconfig::Error),
    #[error("CATTLE_AGENT_STRICT_VERIFY is set, but the connection file has no certificate-authority-data")]
    StrictWithoutCa,
    #[error("{0}")]
    Tls(#[from] tls::Error),
    #[error("{0}")]
    Url(#[from] UrlError),
    #[error("{0}")]
    Client(#[from] client::Error),
    #[error("the registration token or URL cannot be sent: {0}")]
    Request(#[from] http::Error),
    #[error("{}", chain(.0))]
    Tunnel(#[from] drover_tunnel::Error),
    /// Errors by server.
    #[error("{0}")]
    Nowhere(String),
}

impl Tunnel {
    pub(super) fn new(
        host: Arc<dyn Host>,
        connection_file: PathBuf,
        strict: bool,
        status: Arc<TunnelStatus>,
    ) -> Self {
        Self { host, connection_file, strict, status }
    }

    /// Runs forever.
    pub(super) async fn run(&self, mut targets: watch::Receiver<Option<Arc<Target>>>) {
        let mut backoff = Backoff::new(self.host.clone());
        loop {
            let fresh = targets.has_changed().unwrap_or(true);
            let target = targets.borrow_and_update().clone();
            let Some(target) = target else {
                self.status.set_state(None);
                another(&targets).await;
                continue;
            };
            let server = target.credentials.url.authority();
            if fresh {
                backoff.reset();
                self.status.set_state(Some(State::Opening(server.clone())));
            }
            let error = tokio::select! {
                () = another(&targets) => continue,
                error = self.hold(&target, &mut backoff) => error,
            };
            let why: String =
                target.redactor().clean(&error.to_string()).chars().take(LONGEST_TEXT).collect();
            self.status.set_state(Some(State::Closed(server, why)));
            tokio::select! {
                () = another(&targets) => {}
                () = sleep(backoff.pause()) => {}
            }
        }
    }

    /// Opens one tunnel and runs it until it ends. Dropping the future closes the tunnel and its connections.
    async fn hold(&self, target: &Target, backoff: &mut Backoff) -> Error {
        let (session, run, server) = match self.connect(target).await {
            Ok(opened) => opened,
            Err(error) => return error,
        };
        let _open = EndOnDrop(session);
        let since = Instant::now();
        self.status.set_state(Some(State::Open(server)));
        let error = run.await;
        if since.elapsed() >= STEADY {
            backoff.reset();
        }
        error.into()
    }

    /// Opens a tunnel to the first server that accepts it.
    async fn connect(&self, target: &Target) -> Result<(Session, Running, String), Error> {
        // Read again each time, because it may have been renewed.
        let connection = Connection::load(&*self.host, &self.connection_file)?;
        let access = kubeconfig::parse(&connection.kube_config)?;
        if self.strict && access.ca.is_none() {
            return Err(Error::StrictWithoutCa);
        }
        let mut refusals = Vec::new();
        for server in target.servers(&access)? {
            let name = server.url.authority();
            match self.connect_at(target, &access, &server).await {
                Ok((session, run)) => return Ok((session, run, name)),
                Err(error) => refusals.push((name, error)),
            }
        }
        Err(match refusals.len() {
            1 => refusals.remove(0).1,
            _ => Error::Nowhere(
                refusals.iter().map(|(at, why)| format!("{at}: {why}")).collect::<Vec<_>>().join("; "),
            ),
        })
    }

    async fn connect_at(
        &self,
        target: &Target,
        access: &Access,
        server: &Server,
    ) -> Result<(Session, Running), Error> {
        let (uri, headers) = (server.uri()?, target.headers(server.token.as_deref())?);
        let io = self.open(access, server).await?;
        let dial = Arc::new(HostDial(self.host.clone()));
        match drover_tunnel::client::connect(io, &uri, headers, dial).await {
            Ok((session, run)) => Ok((session, Box::pin(run))),
            Err(drover_tunnel::Error::Refused { status, body }) => {
                let mut redactor = Redactor::default();
                server.token.iter().for_each(|token| redactor.add(token));
                Err(drover_tunnel::Error::Refused { status, body: redactor.clean(&body) }.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a TLS connection to the management plane. It trusts the CA of the connection file; if that CA did not sign
    /// the server's certificate, also the system's CAs, unless verification is strict.
    async fn open(&self, access: &Access, server: &Server) -> Result<BoxIo, Error> {
        match self.open_trusting(access, server, false).await {
            Err(Error::Client(error)) if error.is_unknown_issuer() && !self.strict => {
                self.open_trusting(access, server, true).await.map_err(|_| error.into())
            }
            other => other,
        }
    }

    async fn open_trusting(
        &self,
        access: &Access,
        server: &Server,
        system_roots: bool,
    ) -> Result<BoxIo, Error> {
        let tls = tls::client_config(access.trust(self.strict, system_roots), None)?;
        let name = server.server_name.as_deref();
        Ok(Client::new(self.host.clone(), server.url.clone(), name, Some(tls))?.open().await?)
    }
}

/// Waits for another target without marking it as seen.
async fn another(targets: &watch::Receiver<Option<Arc<Target>>>) {
    let mut targets = targets.clone();
    if targets.changed().await.is_err() {
        // The sender is gone, so there will be no other target.
        std::future::pending().await
    }
}

/// Ends the session on drop. Otherwise connections in the tunnel would outlive it.
struct EndOnDrop(Session);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Opens the requested connections from this machine; only TCP is allowed.
struct HostDial(Arc<dyn Host>);

impl Dial for HostDial {
    fn dial(&self, proto: String, address: String) -> Dialing {
        let host = self.0.clone();
        Box::pin(async move {
            if proto != "tcp" {
                return Err(io::Error::other(format!("connect not allowed: protocol {proto} is not tcp")));
            }
            let bad = || io::Error::other(format!("{address} is not host:port"));
            let (name, port) = address.rsplit_once(':').ok_or_else(bad)?;
            let io = host.dial(name, port.parse().map_err(|_| bad())?).await?;
            Ok(Box::new(io) as Box<dyn Io>)
        })
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
