//! What a registration leaves in the API.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use drover_access::registration::{CREDENTIAL_NAMESPACE, ClusterParams, RegisteredBy, Registrar};
use drover_api::management::v3::Cluster;
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::identity::UserInfo;
use drover_runtime::fault::{Fault, Faulty, Plan};
use drover_runtime::{Cache, Caches, ObjectKey, in_process_client};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

const ID: &str = "c-m-abcdefgh";

/// A server as it is after its start: caches that are synced, and nothing remembered.
struct Server {
    registrar: Registrar,
    clusters: Cache<Cluster>,
    secrets: Cache<Secret>,
    plan: Arc<Plan>,
    _stop: DropGuard,
}

impl Server {
    async fn start(api: &Embedded) -> Self {
        let (stop, plan) = (CancellationToken::new(), Plan::new(Fault::Lost, 0));
        let service = Faulty::new(api.service(), plan.clone());
        let caches =
            Caches::new(in_process_client(service, UserInfo::system_masters("server")), stop.clone());
        let (clusters, secrets): (Cache<Cluster>, Cache<Secret>) = (caches.all(), caches.all());
        tokio::join!(clusters.synced(), secrets.synced());
        let registrar = Registrar::new(caches.client().clone(), clusters.clone(), secrets.clone());
        Self { registrar, clusters, secrets, plan, _stop: stop.drop_guard() }
    }

    /// Registers once the caches show what was written before; how many writes it took.
    async fn register(&self, params: &ClusterParams) -> u64 {
        let before = self.plan.writes();
        self.registrar.register(ID, params, &RegisteredBy::Token).await.unwrap();
        self.plan.writes() - before
    }

    async fn shows(&self, params: &ClusterParams) {
        drover_testkit::eventually(async || {
            let key = ObjectKey::new(CREDENTIAL_NAMESPACE, format!("cluster-serviceaccounttoken-{ID}"));
            let secret = self.secrets.get(&key).ok_or("no credential")?;
            let cluster = self.clusters.get(&ObjectKey::cluster(ID)).ok_or("no cluster")?;
            let status = cluster.status.as_ref().ok_or("no status")?;
            let same = secret.data.as_ref().is_some_and(|d| d["credential"].0 == params.token.as_bytes())
                && status.api_endpoint == format!("https://{}", params.address);
            if same { Ok(()) } else { Err("what was before") }
        })
        .await;
    }
}

async fn api() -> (Embedded, Client) {
    let pki = Arc::new(Pki::in_memory(jiff::Timestamp::now()).unwrap());
    let server = Embedded::start(EmbeddedOptions::in_memory(pki)).await.unwrap();
    let client = in_process_client(server.service(), UserInfo::system_masters("test"));
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in drover_api::crds() {
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
    let namespace = serde_json::from_value(json!({"metadata": {"name": CREDENTIAL_NAMESPACE}})).unwrap();
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let cluster = Cluster::new(ID, Default::default());
    Api::<Cluster>::all(client.clone()).create(&PostParams::default(), &cluster).await.unwrap();
    (server, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_check_14_33_a_registration_is_written_once_also_across_a_restart() {
    let (api, client) = api().await;
    let said = ClusterParams { address: "10.43.0.1:443".into(), token: "t".into(), ca_cert: "Y2E=".into() };
    let server = Server::start(&api).await;
    assert_eq!(server.register(&said).await, 2);
    let cluster = Api::<Cluster>::all(client.clone()).get(ID).await.unwrap();
    let status = cluster.status.clone().unwrap();
    assert_eq!((status.api_endpoint.as_str(), status.ca_cert.as_str()), ("https://10.43.0.1:443", "Y2E="));
    let secrets: Api<Secret> = Api::namespaced(client.clone(), CREDENTIAL_NAMESPACE);
    let secret = secrets.get(&status.service_account_token_secret).await.unwrap();
    assert_eq!(secret.data.as_ref().unwrap()["credential"].0, b"t");
    let owners = secret.metadata.owner_references.clone().unwrap();
    assert_eq!((owners.len(), Some(&owners[0].uid)), (1, cluster.metadata.uid.as_ref()));

    // Said again, to this server and to the next one: nothing is written.
    server.shows(&said).await;
    assert_eq!(server.register(&said).await, 0);
    drop(server);
    let server = Server::start(&api).await;
    assert_eq!(server.register(&said).await, 0);
    assert_eq!(secrets.list(&ListParams::default()).await.unwrap().items, std::slice::from_ref(&secret));
    assert_eq!(Api::<Cluster>::all(client.clone()).get(ID).await.unwrap().metadata, cluster.metadata);

    // Only what is new is written.
    let rotated = ClusterParams { token: "u".into(), ..said.clone() };
    assert_eq!(server.register(&rotated).await, 1);
    server.shows(&rotated).await;
    let moved = ClusterParams { address: "10.43.0.2:443".into(), ..rotated.clone() };
    assert_eq!(server.register(&moved).await, 1);
    server.shows(&moved).await;
    let now = secrets.list(&ListParams::default()).await.unwrap().items;
    assert_eq!((now.len(), now[0].metadata.uid.clone()), (1, secret.metadata.uid));
}
