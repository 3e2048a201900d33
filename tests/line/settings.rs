//! Settings after restarts of the management plane.

use serde_json::{Value, json};

use crate::site::Site;

const SETTING: (&str, &str) = ("management.cattle.io/v3", "Setting");

async fn setting(site: &Site, name: &str) -> Value {
    site.objects.get(SETTING.0, SETTING.1, "", name).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_a_person_chose_outlives_a_restart() {
    let (site, manager) = Site::start(None).await;
    let before = setting(&site, "server-url").await;
    assert!(before["value"] == before["default"] && before["value"] != "", "{before:#}");
    let here = "https://drover.example:8443";
    site.objects.merge(SETTING.0, SETTING.1, "", "server-url", json!({"value": here})).await;
    manager.kill().await;
    let manager = site.manager(None).await;
    let after = setting(&site, "server-url").await;
    assert_eq!((&after["value"], &after["default"]), (&json!(here), &before["default"]), "{after:#}");
    let other = setting(&site, "internal-server-url").await;
    assert_eq!(other["value"], other["default"], "no user has set it");
    site.close(manager).await;
}
