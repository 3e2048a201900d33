//! What every controller of this crate is given.

use std::sync::Arc;
use std::time::Duration;

use drover_access_api::ClusterAccess;
use drover_runtime::events::Recorder;
use drover_runtime::{Caches, Clock, Next, ObjectKey};
use jiff::Timestamp;

use crate::controlplane::planner::releases::Releases;
use crate::init::names;
use crate::keys::conditions;
use crate::machine::schema::Drivers;
use crate::plansecret::Views;
use crate::settings::{CurrentSettings, Settings};
use crate::store::Store;

/// Where randomness comes from; tests give a sequence.
pub trait Random: Send + Sync + 'static {
    fn bytes(&self) -> [u8; 32];
}

/// The operating system's randomness.
pub struct SystemRandom;

impl Random for SystemRandom {
    fn bytes(&self) -> [u8; 32] {
        rand::random()
    }
}

/// What a server gives the providers.
pub struct Options {
    pub caches: Caches,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    /// What the server was started with; Setting objects may say otherwise.
    pub settings: Settings,
    pub releases: Releases,
    pub downstream: Arc<dyn ClusterAccess>,
    pub drivers: Arc<dyn Drivers>,
    /// The agent's install script.
    pub install_script: String,
}

/// The same, shared.
#[derive(Clone)]
pub struct Context {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    pub settings: CurrentSettings,
    pub releases: Arc<Releases>,
    pub downstream: Arc<dyn ClusterAccess>,
    pub drivers: Arc<dyn Drivers>,
    pub install_script: Arc<str>,
    pub events: Recorder,
    /// Plan secrets, parsed.
    pub plans: Arc<Views>,
}

impl Context {
    pub fn new(options: Options) -> Self {
        let events =
            Recorder::new(options.caches.client().clone(), options.clock.clone(), "drover-provisioning");
        let store = Store::new(&options.caches);
        let plans = Arc::<Views>::default();
        let forget = plans.clone();
        store.secrets.subscribe(move |change| {
            if let (Some(secret), None) = (change.old, change.new) {
                forget.forget(secret);
            }
        });
        Self {
            settings: CurrentSettings::new(options.settings, store.settings.clone()),
            store,
            clock: options.clock,
            random: options.random,
            releases: Arc::new(options.releases),
            downstream: options.downstream,
            drivers: options.drivers,
            install_script: options.install_script.into(),
            events,
            plans,
        }
    }

    /// Whether a cluster (by management id) answers through its tunnel.
    pub fn is_connected(&self, management: &str) -> bool {
        let twin = self.store.twins.get(&ObjectKey::cluster(management));
        let status = twin.as_ref().and_then(|twin| twin.status.as_ref());
        status.is_some_and(|s| crate::conditions::is_true(&s.conditions, conditions::CONNECTED))
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A fresh token.
    pub fn token(&self) -> String {
        names::token(self.random.bytes())
    }

    /// Look again at `when` at the latest.
    pub fn next(&self, when: Option<Timestamp>) -> Next {
        match when {
            None => Next::EVENT,
            Some(when) => {
                let wait = when.duration_since(self.now());
                Next::after(Duration::try_from(wait).unwrap_or(Duration::ZERO).max(Duration::from_millis(10)))
            }
        }
    }
}
