//! The runner of simulated Jobs against the real API.

use std::sync::Arc;

use drover_apiserver::UserInfo;
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_runtime::in_process_client;
use drover_sim_fleet::jobs::complete;
use drover_testkit::objects::Objects;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, PostParams};
use serde_json::json;

#[tokio::test]
async fn a_job_that_took_the_place_of_another_is_not_called_done_for_it() {
    let pki = Pki::in_memory(jiff::Timestamp::now()).unwrap();
    let server = Embedded::start(EmbeddedOptions::in_memory(Arc::new(pki))).await.unwrap();
    let client = in_process_client(server.service(), UserInfo::system_masters("test"));
    let own = client.clone();
    let objects = Objects::new(move || own.clone());
    let jobs: Api<Job> = Api::namespaced(objects.client(), "default");
    let job = json!({"metadata": {"name": "j"}, "spec": {"managedBy": "drover.io/job-runner", "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}],
    }}}});
    let job: Job = serde_json::from_value(job).unwrap();
    let create = jobs.create(&PostParams::default(), &job).await.unwrap();
    objects.delete("batch/v1", "Job", "default", "j").await;
    let remove = jobs.create(&PostParams::default(), &job).await.unwrap();
    complete(&client, &create).await.unwrap();
    assert!(jobs.get("j").await.unwrap().status.is_none_or(|status| status.completion_time.is_none()));
    complete(&client, &remove).await.unwrap();
    assert!(jobs.get("j").await.unwrap().status.unwrap().completion_time.is_some());
}
