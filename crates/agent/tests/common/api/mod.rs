//! The embedded API server with one plan secret, and an account that may do with it what an agent may.
//!
//! Nothing of it is played: store, watches, tokens, RBAC and TLS are those of the management plane. On command a call
//! goes wrong on its way there or back ([`faults`]), or nobody listens at all ([`Api::set_down`]). It is reached on TCP
//! by the real binary, and on pipes by agents in this process, in virtual time too.

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
    registry::Resource,
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
    /// Name of the plan secret and of the account.
    name: String,
    doors: Doors,
    faults: Faults,
    notes: Mutex<Notes>,
}

struct Server {
    embedded: Embedded,
    pki: Arc<Pki>,
}

/// What was seen of the agent, and what waits for it.
#[derive(Default)]
struct Notes {
    /// Every version that the agent wrote.
    written: Vec<Data>,
    requests: Vec<String>,
    /// Runs before the next update is passed on, as a concurrent writer.
    before_put: Option<Hook>,
    /// What the management plane has below `/assets/`.
    assets: BTreeMap<String, Bytes>,
    tokens: usize,
    /// The secret as it was read last, by its revision: tests look often, and it seldom changes.
    known: Option<(u64, Arc<Data>)>,
}

/// Nothing of a store in memory waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}

impl Api {
    /// With the agent's account, without a plan secret.
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

    /// The same server for another machine, with a secret, an account, ways and faults of its own.
    pub fn beside(&self, name: &str) -> Self {
        let api = Self::on(self.inner.server.clone(), name);
        api.open_account();
        api
    }

    fn resource(&self, group: &str, plural: &str) -> Arc<Resource> {
        let registry = self.inner.server.embedded.server().objects().registry();
        registry.resource(group, "v1", plural).unwrap()
    }

    fn context() -> drover_apiserver::objects::Context {
        drover_apiserver::objects::Context::internal("test")
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

    /// Creates the plan secret, anew if it is there.
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

    /// Changes the secret as the server side does.
    pub fn change(&self, change: impl FnMut(&mut Data) + Send) {
        self.try_change(change).unwrap();
    }

    /// The same, for what the server may refuse.
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

    /// Offers an agent for this machine, as the manager does: beside the plan, without touching it.
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

    /// The offer stays, but something else lies there.
    pub fn spoil_offer(&self, agent: &[u8]) {
        self.notes(|notes| {
            for asset in notes.assets.values_mut() {
                *asset = Bytes::copy_from_slice(agent);
            }
        });
    }

    /// What happens to calls on their way.
    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    /// Nobody listens any more and every connection is cut, until it is up again.
    pub fn set_down(&self, down: bool) {
        self.inner.doors.set_down(down, self);
    }

    pub fn is_down(&self) -> bool {
        self.inner.doors.is_down()
    }

    /// Cuts every connection; new ones are welcome.
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
            "what is not the agent's survives its updates"
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

    /// The secret's resourceVersion.
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

    /// A compressed map of the secret.
    pub fn map(&self, key: &str) -> BTreeMap<String, Value> {
        drover_agent::remote::gzip_json::decode(self.known().get(key))
    }

    /// A saved output.
    pub fn output(&self, key: &str, name: &str) -> String {
        let map = self.map(key);
        let text = map.get(name).and_then(Value::as_str).unwrap_or_default();
        String::from_utf8_lossy(&STANDARD.decode(text).unwrap()).into_owned()
    }

    /// Waits for the secret to be so.
    pub async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        self.until_within(Duration::from_secs(60), what, condition).await;
    }

    pub async fn until_within(&self, limit: Duration, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + limit;
        while !condition(self) {
            assert!(
                tokio::time::Instant::now() < deadline,
                "waited in vain: {what}; the secret is {}",
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
