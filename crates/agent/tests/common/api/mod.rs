//! The embedded API server with one plan secret, and an account with the permissions of an agent.
//!
//! Nothing is simulated: store, watches, tokens, RBAC and TLS are those of the management plane. Tests can make
//! requests fail ([`faults`]) or close the port ([`Api::set_down`]). The real binary connects over TCP, and agents in
//! this process over pipes, also in virtual time.

pub mod account;
mod answer;
mod door;
pub mod faults;

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use drover_apiserver::{
    auth::pki::Pki,
    clock::SystemClock,
    controllers::ControllerOptions,
    embedded::{Embedded, EmbeddedOptions},
    objects::{DeleteOptions, UpdateOptions},
    resources::Resource,
    storage::MemoryStorage,
};
use serde_json::{Value, json};

pub use answer::{Body, status};
use door::Doors;
pub use faults::{Call, Fault, Faults};

pub const NAMESPACE: &str = "fleet-default";

pub type Data = BTreeMap<String, Vec<u8>>;
type Hook = Box<dyn FnMut(&mut Data) + Send>;

/// The server. Cloning it gives another handle.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

struct Inner {
    server: Arc<Server>,
    /// The name of the plan secret and of the account.
    name: String,
    doors: Doors,
    faults: Faults,
    notes: Mutex<Notes>,
}

struct Server {
    embedded: Embedded,
    pki: Arc<Pki>,
}

/// What the agent did, and hooks for the test.
#[derive(Default)]
struct Notes {
    /// Every version that the agent wrote.
    written: Vec<Data>,
    requests: Vec<String>,
    /// Runs before the next update is processed, as a concurrent writer.
    before_put: Option<Hook>,
    /// The files that the management plane serves below `/assets/`.
    assets: BTreeMap<String, Bytes>,
    tokens: usize,
    /// The secret at its last revision: tests read it often, and it rarely changes.
    known: Option<(u64, Arc<Data>)>,
}

/// A store in memory never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a store in memory never waits"),
    }
}

impl Api {
    /// With the agent's account, but without a plan secret.
    pub fn new() -> Self {
        let pki = Arc::new(Pki::in_memory(jiff::Timestamp::now()).unwrap());
        let options = EmbeddedOptions {
            storage: Arc::new(MemoryStorage::new()),
            clock: Arc::new(SystemClock),
            version: "v1.36.3".into(),
            pki: pki.clone(),
            admission: vec![],
            authenticators: vec![],
            anonymous: true,
            server_url: "https://127.0.0.1".into(),
            controllers: ControllerOptions::default(),
        };
        let embedded = at_once(Embedded::start(options)).unwrap();
        let api = Self::on(Arc::new(Server { embedded, pki }), "the-machine-plan");
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        api.put_object("", "namespaces", namespace);
        api.open_account();
        api
    }

    fn on(server: Arc<Server>, name: &str) -> Self {
        let (doors, faults, notes) = (Doors::default(), Faults::default(), Mutex::default());
        Self { inner: Arc::new(Inner { server, name: name.to_owned(), doors, faults, notes }) }
    }

    /// The same server for another machine, with its own secret, account, listeners and faults.
    pub fn beside(&self, name: &str) -> Self {
        let api = Self::on(self.inner.server.clone(), name);
        api.open_account();
        api
    }

    fn resource(&self, group: &str, plural: &str) -> Arc<Resource> {
        let registry = self.inner.server.embedded.server().objects().resources();
        registry.resource(group, "v1", plural).unwrap()
    }

    fn context() -> drover_apiserver::objects::WriteContext {
        drover_apiserver::objects::WriteContext::internal("test")
    }

    fn put_object(&self, group: &str, plural: &str, object: Value) {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let objects = self.inner.server.embedded.server().objects();
        let resource = self.resource(group, plural);
        at_once(objects.create(&Self::context(), &resource, &namespace, object)).unwrap();
    }

    fn delete_secret(&self, name: &str) {
        let objects = self.inner.server.embedded.server().objects();
        let options = DeleteOptions::default();
        let secrets = self.resource("", "secrets");
        at_once(objects.delete(&Self::context(), &secrets, NAMESPACE, name, &options)).unwrap();
    }

    fn secret(&self, name: &str) -> Option<Value> {
        let objects = self.inner.server.embedded.server().objects();
        objects.get(&self.resource("", "secrets"), NAMESPACE, name).ok().map(|version| version.decode())
    }

    /// Creates the plan secret, or recreates it.
    pub fn create(&self, entries: &[(&str, &str)]) {
        if self.secret(&self.inner.name).is_some() {
            self.delete();
        }
        let data: BTreeMap<&str, String> =
            entries.iter().map(|(key, value)| (*key, STANDARD.encode(value))).collect();
        let metadata = json!({"name": self.inner.name, "namespace": NAMESPACE, "labels": {"keep": "me"}});
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "rke.cattle.io/machine-plan",
            "metadata": metadata, "data": data,
        });
        self.put_object("", "secrets", object);
    }

    pub fn delete(&self) {
        self.delete_secret(&self.inner.name);
    }

    fn change_object(&self, change: impl FnMut(&mut Value) + Send) {
        self.try_change_object(change).unwrap();
    }

    fn try_change_object(&self, mut change: impl FnMut(&mut Value) + Send) -> Result<(), String> {
        let objects = self.inner.server.embedded.server().objects();
        let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
        let (context, secrets) = (Self::context(), self.resource("", "secrets"));
        let changed = objects.update(
            &context,
            &secrets,
            NAMESPACE,
            &self.inner.name,
            options,
            |stored: Option<&Value>| {
                let mut object = stored.cloned().unwrap();
                change(&mut object);
                Ok(object)
            },
        );
        at_once(changed).map(drop).map_err(|error| format!("{error:?}"))
    }

    /// Changes the secret as the server.
    pub fn change(&self, change: impl FnMut(&mut Data) + Send) {
        self.try_change(change).unwrap();
    }

    /// The same, for changes that the server can reject.
    pub fn try_change(&self, mut change: impl FnMut(&mut Data) + Send) -> Result<(), String> {
        self.try_change_object(|object| {
            let mut data = decode(object);
            change(&mut data);
            object["data"] = data
                .into_iter()
                .map(|(key, value)| (key, Value::from(STANDARD.encode(value))))
                .collect::<serde_json::Map<_, _>>()
                .into();
        })
    }

    /// Writes a plan as the planner does.
    pub fn plan(&self, plan: &str, state: Option<&str>) {
        self.change(|data| {
            data.insert("plan".into(), plan.as_bytes().to_vec());
            data.remove("probe-statuses");
            if let Some(state) = state {
                data.insert("plan-state".into(), state.as_bytes().to_vec());
            }
        });
    }

    /// Offers an agent for this machine, as the manager does: in an annotation, without changing the plan.
    pub fn offer(&self, agent: &[u8]) {
        let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let sum = drover_plan::checksum(agent);
        let offer = drover_plan::AgentOffer { sha256: [(arch.to_owned(), sum)].into() };
        let name = drover_plan::AgentOffer::asset(arch);
        self.notes(|notes| notes.assets.insert(name, Bytes::copy_from_slice(agent)));
        self.change_object(|object| {
            object["metadata"]["annotations"][drover_plan::AGENT_OFFER] = offer.to_text().into();
        });
    }

    /// Keeps the offer, but serves a different file.
    pub fn spoil_offer(&self, agent: &[u8]) {
        self.notes(|notes| {
            for asset in notes.assets.values_mut() {
                *asset = Bytes::copy_from_slice(agent);
            }
        });
    }

    /// The faults of requests.
    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    /// Closes the port and all connections until it is opened again.
    pub fn set_down(&self, down: bool) {
        self.inner.doors.set_down(down, self);
    }

    pub fn is_down(&self) -> bool {
        self.inner.doors.is_down()
    }

    /// Closes all connections; new ones are accepted.
    pub fn cut(&self) {
        self.inner.doors.cut();
    }

    pub fn before_next_put(&self, hook: impl FnMut(&mut Data) + Send + 'static) {
        self.notes(|notes| notes.before_put = Some(Box::new(hook)));
    }

    fn notes<T>(&self, with: impl FnOnce(&mut Notes) -> T) -> T {
        with(&mut self.inner.notes.lock().unwrap())
    }

    fn known(&self) -> Arc<Data> {
        let objects = self.inner.server.embedded.server().objects();
        let Ok(version) = objects.get(&self.resource("", "secrets"), NAMESPACE, &self.inner.name) else {
            return Arc::default();
        };
        let known = self.notes(|notes| notes.known.clone());
        if let Some((_, data)) = known.filter(|(revision, _)| *revision == version.revision()) {
            return data;
        }
        let object = version.decode();
        assert_eq!(
            object["metadata"]["labels"]["keep"], "me",
            "the agent's updates keep the fields of others"
        );
        assert_eq!(object["type"], "rke.cattle.io/machine-plan");
        let data = Arc::new(decode(&object));
        self.notes(|notes| notes.known = Some((version.revision(), data.clone())));
        data
    }

    pub fn data(&self) -> Data {
        Data::clone(&self.known())
    }

    pub fn text(&self, key: &str) -> String {
        self.known().get(key).map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    }

    /// The resourceVersion of the secret.
    pub fn revision(&self) -> u64 {
        let objects = self.inner.server.embedded.server().objects();
        let secrets = self.resource("", "secrets");
        objects.get(&secrets, NAMESPACE, &self.inner.name).unwrap().revision()
    }

    pub fn written(&self) -> Vec<Data> {
        self.notes(|notes| notes.written.clone())
    }

    pub fn requests(&self) -> Vec<String> {
        self.notes(|notes| notes.requests.clone())
    }

    /// A compressed map in the secret.
    pub fn map(&self, key: &str) -> BTreeMap<String, Value> {
        drover_agent::remote::gzip_json::decode(self.known().get(key))
    }

    /// A saved output.
    pub fn output(&self, key: &str, name: &str) -> String {
        let map = self.map(key);
        let text = map.get(name).and_then(Value::as_str).unwrap_or_default();
        String::from_utf8_lossy(&STANDARD.decode(text).unwrap()).into_owned()
    }

    /// Waits for a state of the secret.
    pub async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        self.until_within(Duration::from_secs(60), what, condition).await;
    }

    pub async fn until_within(&self, limit: Duration, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + limit;
        while !condition(self) {
            assert!(
                tokio::time::Instant::now() < deadline,
                "timed out waiting for: {what}; the secret is {}",
                self.describe()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn until_text(&self, key: &str, value: &str) {
        self.until(&format!("{key} = {value}"), |api| api.text(key) == value).await;
    }

    pub fn describe(&self) -> String {
        self.data()
            .iter()
            .map(|(key, value)| {
                format!("\n  {key}: {}", String::from_utf8_lossy(&value[..value.len().min(120)]))
            })
            .collect()
    }
}

fn decode(object: &Value) -> Data {
    let data = object["data"].as_object().into_iter().flatten();
    data.map(|(key, value)| (key.clone(), STANDARD.decode(value.as_str().unwrap()).unwrap())).collect()
}

pub fn sum(plan: &str) -> String {
    drover_plan::checksum(plan.as_bytes())
}
