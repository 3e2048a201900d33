//! Leader election among several servers on one API, with a real API in memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use drover_apiserver::UserInfo;
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_runtime::in_process_client;
use drover_server::external::leader::{Candidate, NAME, NAMESPACE};
use drover_testkit::SOON;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

async fn api() -> (Embedded, Client) {
    let embedded = Embedded::start(EmbeddedOptions::in_memory(Arc::new(
        Pki::in_memory(jiff::Timestamp::now()).unwrap(),
    )));
    let embedded = embedded.await.unwrap();
    let client = in_process_client(embedded.service(), UserInfo::system_masters("test"));
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    (embedded, client)
}

async fn holder(client: &Client) -> String {
    let lease = Api::<Lease>::namespaced(client.clone(), NAMESPACE).get(NAME).await.unwrap();
    lease.spec.unwrap().holder_identity.unwrap()
}

#[tokio::test]
async fn a_second_candidate_waits_reports_the_leader_and_then_takes_over() {
    let (_api, client) = api().await;
    let no_other = |holder: &str| panic!("there is no other leader: {holder}");
    let first = timeout(SOON, Candidate::new(client.clone(), "first").lead(no_other)).await.unwrap();
    assert_eq!(holder(&client).await, "first");

    let (leaders, mut reported) = mpsc::unbounded_channel();
    let waiting = Candidate::new(client.clone(), "second");
    let second = tokio::spawn(waiting.lead(move |holder| leaders.send(holder.to_owned()).unwrap()));
    assert_eq!(timeout(SOON, reported.recv()).await.unwrap().unwrap(), "first");
    assert!(!second.is_finished() && !first.lost().is_cancelled());

    first.release().await;
    let second = timeout(SOON, second).await.unwrap().unwrap();
    assert_eq!(holder(&client).await, "second");
    second.release().await;
    assert_eq!(holder(&client).await, "");
}

#[tokio::test]
async fn a_killed_server_becomes_the_leader_again_at_once() {
    let (_api, client) = api().await;
    let no_other = |holder: &str| panic!("it must not wait for itself: {holder}");
    let first = timeout(SOON, Candidate::new(client.clone(), "same").lead(no_other)).await.unwrap();
    // A killed server does not release the Lease.
    std::mem::forget(first);
    timeout(SOON, Candidate::new(client.clone(), "same").lead(no_other)).await.unwrap();
}

#[tokio::test]
async fn a_leader_that_finds_another_holder_has_lost() {
    let (_api, client) = api().await;
    let leader = Candidate::new(client.clone(), "first").lead(|_| {}).await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let taken = Patch::Merge(json!({"spec": {"holderIdentity": "second"}}));
    leases.patch(NAME, &PatchParams::default(), &taken).await.unwrap();
    timeout(SOON, leader.lost().cancelled()).await.unwrap();
    leader.release().await;
    assert_eq!(holder(&client).await, "second", "the Lease of another holder is not released");
}
