//! Garbage in the plan secret of a machine with a real agent: the agent or Drover restores every key, and nothing is
//! installed again.

use std::time::Duration;

use drover_testkit::objects::condition;
use drover_testkit::{demo, eventually_within};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};

use crate::site::Site;

async fn worker(site: &Site) -> (Api<Secret>, Secret) {
    let secrets: Api<Secret> = Api::namespaced(site.objects.client(), "default");
    let params = ListParams::default().fields("type=rke.cattle.io/machine-plan");
    let mut all = secrets.list(&params).await.unwrap().items;
    all.retain(|secret| !secret.labels().contains_key("rke.cattle.io/etcd-role"));
    let first = all.into_iter().next().unwrap();
    (secrets, first)
}

async fn write(secrets: &Api<Secret>, name: &str, key: &str, value: &[u8]) {
    eventually_within(Duration::from_secs(30), || async {
        let mut secret = secrets.get(name).await.unwrap();
        secret.data.get_or_insert_default().insert(key.to_owned(), ByteString(value.to_vec()));
        secrets.replace(name, &PostParams::default(), &secret).await.map(|_| ()).map_err(|e| e.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_living_agent_and_drover_replace_garbage_in_the_plan_secret() {
    let (site, manager) = Site::start(None).await;
    demo::make(&site.objects).await;
    demo::ready(&site.objects, "made").await;
    let (secrets, secret) = worker(&site).await;
    let name = secret.name_any();
    let before = secret.data.clone().unwrap();
    for key in ["probe-statuses", "plan-state", "failure-count", "appliedPlan", "plan"] {
        write(&secrets, &name, key, b"[garbage").await;
        eventually_within(demo::PATIENCE, || async {
            let data = secrets.get(&name).await.unwrap().data.unwrap();
            let held = |key: &str| data.get(key).map(|value| value.0.clone());
            let same = held(key) == before.get(key).map(|value| value.0.clone())
                || (key == "failure-count" && held(key) == Some(b"0".to_vec()));
            let state = held("plan-state") == Some(b"succeeded".to_vec());
            let told = |key: &str| String::from_utf8_lossy(&held(key).unwrap_or_default()).into_owned();
            if same && state {
                Ok(())
            } else {
                Err(format!("{key}: {:.60}, {}", told(key), told("plan-state")))
            }
        })
        .await;
        demo::ready(&site.objects, key).await;
    }
    let cluster = demo::cluster(&site.objects).await;
    assert_eq!(condition(&cluster, "Ready"), ("True".to_owned(), String::new()));
    site.close(manager).await;
}
