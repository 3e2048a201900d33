//! A complete server with either store, called through its in-process service.

use drover_apiserver::auth::pki::Pki;
use drover_apiserver::auth::{Auth, AuthOptions};
use drover_apiserver::clock::{Clock, SystemClock};
use drover_apiserver::controllers::{ControllerOptions, Controllers};
use drover_apiserver::storage::{MemoryStorage, SqliteStorage, Storage, StorageError};
use drover_apiserver::{ApiServer, Options, UserInfo};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;

pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) pki: Arc<Pki>,
    pub(crate) storage: Arc<dyn Storage>,
    controllers: Option<Controllers>,
}

/// The options of a test cluster.
pub(crate) struct Setup {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pki: Option<Arc<Pki>>,
    pub(crate) controllers: Option<ControllerOptions>,
    pub(crate) configure: Box<dyn FnOnce(&mut AuthOptions)>,
}

impl Setup {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self {
            storage,
            clock: Arc::new(SystemClock),
            pki: None,
            controllers: Some(ControllerOptions::default()),
            configure: Box::new(|_| ()),
        }
    }

    pub(crate) async fn start(self) -> Cluster {
        let pki = self.pki.unwrap_or_else(|| Arc::new(Pki::in_memory(self.clock.now()).unwrap()));
        let mut auth_options = AuthOptions::new(pki.clone());
        (self.configure)(&mut auth_options);
        let auth = Auth::new(auth_options, self.storage.clone(), self.clock.clone()).unwrap();
        let mut options = Options { storage: self.storage.clone(), clock: self.clock, ..Options::default() };
        auth.install(&mut options);
        let server = ApiServer::start(options).await.unwrap();
        auth.register(server.objects());
        let controllers = match self.controllers {
            Some(mut options) => {
                options.root_ca.get_or_insert_with(|| pki.ca_pem().to_owned());
                Some(Controllers::start(server.objects(), options).await.unwrap())
            }
            None => None,
        };
        Cluster { server, pki, storage: self.storage, controllers }
    }
}

/// Runs a test with both stores.
pub(crate) async fn on_both<F: Future<Output = ()>>(test: impl Fn(Cluster) -> F) {
    test(Setup::new(Arc::new(MemoryStorage::new())).start().await).await;
    let dir = tempfile::tempdir().unwrap();
    let storage = Arc::new(SqliteStorage::open(dir.path()).unwrap());
    test(Setup::new(storage).start().await).await;
}

/// Opens a store that a stopped server used; its last tasks may still be ending.
pub(crate) async fn reopen(dir: &std::path::Path) -> Arc<dyn Storage> {
    let open = async {
        loop {
            match SqliteStorage::open(dir) {
                Ok(storage) => return Arc::new(storage),
                Err(StorageError::InUse(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(DEADLINE, open).await.unwrap()
}

pub(crate) fn admin() -> UserInfo {
    UserInfo::system_masters("system:admin")
}

pub(crate) fn user(name: &str) -> UserInfo {
    UserInfo { name: name.into(), groups: vec!["system:authenticated".into()], ..UserInfo::default() }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.body);
        self.body
    }
}

impl Cluster {
    /// Stops everything, so that the store can be opened again.
    pub(crate) async fn stop(self) {
        if let Some(controllers) = self.controllers {
            controllers.stop().await;
        }
        self.server.shut_down();
    }

    /// Sends one request; `who` is trusted, `None` lets the server authenticate.
    pub(crate) async fn call(
        &self,
        who: Option<UserInfo>,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        self.call_with(who, method, path, body, &[]).await
    }

    pub(crate) async fn call_with(
        &self,
        who: Option<UserInfo>,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = http::Request::builder().method(method).uri(path);
        let content_type =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        request = request.header("content-type", content_type);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let bytes = body.map(ToString::to_string).unwrap_or_default();
        let mut request = request.body(Full::new(bytes::Bytes::from(bytes))).unwrap();
        if let Some(who) = who {
            request.extensions_mut().insert(who);
        }
        let response =
            tokio::time::timeout(DEADLINE, self.server.service().oneshot(request)).await.unwrap().unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        Answer { code, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null) }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Some(admin()), "GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Some(admin()), "POST", path, Some(&body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Answer {
        self.call(Some(admin()), "PATCH", path, Some(&body)).await
    }

    pub(crate) async fn delete(&self, path: &str, options: Value) -> Answer {
        self.call(Some(admin()), "DELETE", path, Some(&options)).await
    }

    pub(crate) async fn namespace(&self, name: &str) {
        self.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await.expect(201);
    }

    /// Waits for the condition; checks it again after every change of the store.
    pub(crate) async fn eventually<F: Future<Output = bool>>(&self, what: &str, condition: impl Fn() -> F) {
        let index = self.storage.index();
        let wait = async {
            loop {
                let mut tail = index.follow_all(index.revision()).unwrap();
                if condition().await {
                    return;
                }
                tail.changed().await;
            }
        };
        assert!(tokio::time::timeout(DEADLINE, wait).await.is_ok(), "timed out waiting for: {what}");
    }

    pub(crate) async fn gone(&self, path: &str) {
        self.eventually(&format!("deletion of {path}"), || async { self.get(path).await.code == 404 }).await;
    }
}

/// A ConfigMap with owners given as (name, uid).
pub(crate) fn config_map(name: &str, owners: &[(&str, &str)]) -> Value {
    let owners: Vec<Value> = owners
        .iter()
        .map(|(name, uid)| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": true})
        })
        .collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}})
}

pub(crate) fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}
