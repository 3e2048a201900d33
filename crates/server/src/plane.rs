//! The management plane without its host: the API on some storage, every controller except the one that runs child
//! processes, tunnels, the proxy and the port's request handlers.
//!
//! [`crate::manager`] adds a data directory, a port, local machines and a Job runner. Tests use a storage in memory
//! and simulate the Jobs.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use drover_access::Downstreams;
use drover_access::acceptor::TunnelAcceptor;
use drover_access::clusters::{ClusterConnections, Sources};
use drover_access::connected::Connectivity;
use drover_access::proxy::Proxy;
use drover_access::registration::Registrar;
use drover_access::tokens::{KubeconfigAuthenticator, Tokens};
use drover_access_api::ManagementIds;
use drover_apiserver::UserInfo;
use drover_apiserver::auth::pki::{Pki, ServingCertificate, server_config};
use drover_apiserver::controllers::ControllerOptions;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::http::ApiService;
use drover_apiserver::identity::Authenticator;
use drover_apiserver::status::Status;
use drover_apiserver::storage::Storage;
use drover_provisioning::context::{Options as ProvisioningOptions, SystemRandom};
use drover_provisioning::controllers::Provisioning;
use drover_provisioning::controlplane::planner::releases::Releases;
use drover_provisioning::machine::schema::Drivers;
use drover_provisioning::selectors;
use drover_provisioning::settings::{CurrentSettings, Settings};
use drover_runtime::metrics::CacheSizes;
use drover_runtime::{Caches, Clock, SystemClock, vital};
use drover_tunnel::Registry;
use futures::future::BoxFuture;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{Backend, Backing};
use crate::external::reviews::Authorized;
use crate::front::{Asset, Front, Parts};
use crate::machines::ProvisionedMachines;
use crate::metrics::{self, Agents, Metrics, Tunnels};

/// The Kubernetes version of the embedded API.
const KUBERNETES_VERSION: &str = "v1.36.3";
/// The user of the controllers of this process.
pub(crate) const CONTROLLERS: &str = "system:drover";
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Options of a management plane.
pub struct PlaneOptions {
    pub api: Backing,
    /// The certificate authority of the port. On the embedded API it also signs client certificates and tokens.
    pub pki: Arc<Pki>,
    /// The port's certificate.
    pub serving: Arc<ServingCertificate>,
    /// URL for users on this host.
    pub url: String,
    /// URL for machines.
    pub server_url: String,
    /// Flags of the machine drivers.
    pub drivers: Arc<dyn Drivers>,
    pub install_script: String,
    /// Files below `/assets/`, by name.
    pub assets: BTreeMap<String, Asset>,
    /// Installer images below `/v2/`.
    pub images: drover_registry::Registry,
    /// How long clusters that were connected to the previous server count as connected without a tunnel or, with a
    /// kubeconfig, without a response.
    pub patience: Duration,
}

/// A running management plane. Dropping it stops the controllers and closes the port.
pub struct Plane {
    /// A client with all permissions.
    pub client: Client,
    /// The metrics at `/metrics`.
    pub metrics: Metrics,
    caches: Caches,
    settings: CurrentSettings,
    clock: Arc<dyn Clock>,
    backend: Backend,
    port: Port,
    controllers: CancellationToken,
    tasks: TaskTracker,
}

/// What an additional controller shares with those of the plane.
pub struct Shared {
    pub caches: Caches,
    pub settings: CurrentSettings,
    pub clock: Arc<dyn Clock>,
    pub stop: CancellationToken,
}

/// Answers on any listener until the plane stops. Clones share it.
#[derive(Clone)]
pub struct Port {
    front: Front,
    tls: Arc<rustls::ServerConfig>,
    connections: drover_https::ConnectionLimiter,
    stop: CancellationToken,
}

impl Port {
    /// Cancelled when the plane stops.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Answers until `stop`.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let front = self.front;
        let handler = move |request| front.clone().answer(request);
        drover_https::serve_through(self.connections, listener, self.tls, handler, stop).await;
    }
}

impl Plane {
    /// Starts everything. Requests are answered after [`Plane::serve`].
    pub async fn start(options: PlaneOptions) -> anyhow::Result<Self> {
        Self::start_with(options, client).await
    }

    /// Starts everything with controllers that reach the API through `connect`, in which tests inject faults.
    pub async fn start_with(
        options: PlaneOptions,
        connect: impl FnOnce(ApiService) -> Client,
    ) -> anyhow::Result<Self> {
        let PlaneOptions {
            api,
            pki,
            serving,
            url,
            server_url,
            drivers,
            install_script,
            assets,
            images,
            patience,
        } = options;
        let deferred = Arc::new(DeferredAuthenticator::default());
        let mut store = None;
        let (backend, ours, client) = match api {
            Backing::Embedded(storage) => {
                store = Some(storage.clone());
                let embedded = embed(storage, pki.clone(), url.clone(), deferred.clone()).await?;
                let (own, given) = (client(embedded.service()), connect(embedded.service()));
                (Backend::Embedded(embedded), own, given)
            }
            Backing::External(external) => {
                let own = external.client().clone();
                (Backend::External(external), own.clone(), own)
            }
        };
        let settings = Settings {
            server_url,
            internal_server_url: url,
            cacerts: pki.ca_pem().to_owned(),
            internal_cacerts: pki.ca_pem().to_owned(),
            agent_offer: crate::front::agent_offer(&assets).await,
            ..Settings::default()
        };
        let health = || store.as_ref().map_or(Ok(()), |store| store.health());
        crate::prepare::run(&ours, &settings, health).await?;

        let stop = CancellationToken::new();
        let controllers = stop.child_token();
        let counted = drover_runtime::Metrics::default();
        let caches = Caches::new(client.clone(), controllers.clone()).counted(counted.clone());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (secrets, twins) = (selectors::secrets(&caches), caches.all());
        let tokens = Tokens::new(secrets.clone()).with_registrations(caches.all());
        deferred.set(Arc::new(KubeconfigAuthenticator::new(tokens.clone())));
        if let Backend::External(external) = &backend {
            external.recognise(KubeconfigAuthenticator::new(tokens.clone()));
        }
        let tunnels = Registry::default();
        let downstreams = Downstreams::new(twins.clone(), secrets.clone(), tunnels.clone());
        let ids = ManagementIds::new(caches.all());
        let sources = Sources {
            downstreams: downstreams.clone(),
            ids: ids.clone(),
            twins: twins.clone(),
            provisioned: caches.all(),
            clusters: caches.all(),
            secrets: secrets.clone(),
            patience,
        };
        let clusters = ClusterConnections::new(sources, controllers.clone());
        let provisioning = Provisioning::new(ProvisioningOptions {
            caches: caches.clone(),
            clock: clock.clone(),
            random: Arc::new(SystemRandom),
            settings,
            releases: Releases::builtin(),
            downstream: Arc::new(clusters.clone()),
            drivers,
            install_script: install_script.clone(),
        });
        let current = provisioning.context().settings.clone();
        let mut proxy = Proxy::new(twins.clone(), ids, downstreams.clone());
        if let Backend::External(external) = &backend {
            proxy = proxy.authorized_by(Arc::new(Authorized(external.clone())));
        }
        let (metrics, agents) = (Metrics::default(), Agents::default());
        metrics.register(|registry| {
            backend.register_metrics(registry);
            counted.register(registry);
            agents.register(registry);
        });
        metrics.collect(CacheSizes(caches.clone()));
        metrics.collect(Tunnels(tunnels.clone()));
        metrics.collect(metrics::Clusters {
            clusters: caches.all(),
            control_planes: caches.all(),
            deployments: caches.all(),
            machines: caches.all(),
            jobs: provisioning.context().store.jobs.clone(),
        });
        let acceptor = TunnelAcceptor::new(
            tokens,
            twins.clone(),
            Arc::new(ProvisionedMachines(provisioning.context().clone())),
            Registrar::new(client.clone(), twins.clone(), secrets.clone()),
            tunnels,
        );
        let front = Front::new(Parts {
            backend: backend.clone(),
            proxy,
            acceptor: acceptor.clone(),
            connect: provisioning.connect(),
            settings: current.clone(),
            install_script,
            assets,
            images,
            metrics: metrics.clone(),
            agents,
        });
        let tls = Arc::new(server_config(&pki, serving)?);

        let tasks = TaskTracker::new();
        let run = |work: BoxFuture<'static, ()>| tasks.spawn(vital(work, controllers.clone()));
        run(Box::pin(provisioning.run(controllers.clone())));
        let capi = drover_capi::run(caches.clone(), Arc::new(clusters), clock.clone(), controllers.clone());
        run(Box::pin(capi));
        let connectivity =
            Connectivity::new(client.clone(), twins, downstreams, acceptor, clock.clone(), patience);
        run(Box::pin(connectivity.run(controllers.clone())));
        let port = Port { front, tls, connections: crate::connections::limiter(&current), stop };
        Ok(Self { client, metrics, caches, settings: current, clock, backend, port, controllers, tasks })
    }

    /// The settings that users can change.
    pub fn settings(&self) -> &CurrentSettings {
        &self.settings
    }

    /// Answers on a listener until the plane stops.
    pub fn serve(&self, listener: TcpListener) {
        self.tasks.spawn(self.port.clone().serve(listener, self.port.stop.clone()));
    }

    /// The request handler, for listeners of the caller.
    pub fn port(&self) -> Port {
        self.port.clone()
    }

    /// Every path that the port answers, as [patterns](drover_apiserver::http::pattern).
    pub fn paths(&self) -> Vec<&'static str> {
        crate::routes::ROUTES.iter().map(|route| route.path).chain(self.backend.paths()).collect()
    }

    /// Runs an additional controller, which stops with the others.
    pub fn join<F>(&self, controller: impl FnOnce(Shared) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let work = controller(Shared {
            caches: self.caches.clone(),
            settings: self.settings.clone(),
            clock: self.clock.clone(),
            stop: self.controllers.clone(),
        });
        self.tasks.spawn(vital(work, self.controllers.clone()));
    }

    /// Completes when a controller has panicked; the others have stopped then, too.
    pub async fn broken(&self) {
        self.controllers.cancelled().await;
    }

    /// Stops the controllers, then the port.
    pub async fn stop(self) {
        self.backend.shut_down();
        self.controllers.cancel();
        self.port.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_LIMIT, self.tasks.wait()).await.is_err() {
            tracing::warn!("some tasks did not stop in time");
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.port.stop.cancel();
    }
}

/// The embedded API with Drover's additions.
async fn embed(
    storage: Arc<dyn Storage>,
    pki: Arc<Pki>,
    url: String,
    deferred: Arc<DeferredAuthenticator>,
) -> anyhow::Result<Arc<Embedded>> {
    let embedded = Embedded::start(EmbeddedOptions {
        storage,
        clock: Arc::new(drover_apiserver::clock::SystemClock),
        version: KUBERNETES_VERSION.into(),
        pki: pki.clone(),
        admission: crate::admission::hooks(),
        authenticators: vec![deferred],
        anonymous: true,
        server_url: url,
        controllers: ControllerOptions {
            root_ca: Some(pki.ca_pem().to_owned()),
            ..ControllerOptions::default()
        },
    })
    .await?;
    let embedded = Arc::new(embedded);
    crate::admission::watch_over(&embedded);
    Ok(embedded)
}

/// A client of the API in this process with all permissions.
fn client(api: ApiService) -> Client {
    drover_runtime::in_process_client(api, UserInfo::system_masters(CONTROLLERS))
}

/// An authenticator that is set after the API has started.
#[derive(Default)]
struct DeferredAuthenticator(OnceLock<Arc<dyn Authenticator>>);

impl DeferredAuthenticator {
    fn set(&self, authenticator: Arc<dyn Authenticator>) {
        // Set once, at start.
        let _ = self.0.set(authenticator);
    }
}

impl Authenticator for DeferredAuthenticator {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
        match self.0.get() {
            Some(authenticator) => authenticator.authenticate(request),
            None => Box::pin(async { Ok(None) }),
        }
    }
}
