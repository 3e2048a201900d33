//! A fleet as in `drover sim fleet`, with seeded changes and faults.

use std::time::Duration;

use drover_runtime::fault::{Fault, Plan};
use drover_sim_fleet::churn::{Churn, Tally};
use drover_sim_fleet::clusters::Shape;
use drover_sim_fleet::{Fleet, FleetOptions, settled};
use drover_testkit::eventually_within;
use kube::Client;

use crate::site::{IMAGE_PREFIX, Site, VERSIONS};

const CLUSTERS: usize = 20;
const SEED: u64 = 20;
/// After this many writes of the management plane, one response is lost.
const GAP: u64 = 150;
const LIMIT: Duration = Duration::from_secs(900);

async fn converge(client: &Client, when: &str) {
    eventually_within(LIMIT, || async {
        match settled::problems(client).await {
            Ok(problems) if problems.is_empty() => Ok(()),
            Ok(problems) => Err(format!("{when}: {problems:#?}")),
            Err(error) => Err(format!("{when}: {}", error.chain())),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_of_20_clusters_with_churn_and_faults_converges_and_is_deleted() {
    let faults = || Some(Plan::every(Fault::AnswerLost, GAP, GAP));
    let (site, manager) = Site::start(faults()).await;
    let (client, url) = site.admin().await;
    let dir = tempfile::tempdir().unwrap();
    let options = || FleetOptions {
        dir: dir.path().to_owned(),
        server: url.clone(),
        server_url: url.clone(),
        image_prefix: IMAGE_PREFIX.into(),
        versions: VERSIONS.map(str::to_owned).into(),
    };
    let fleet = Fleet::start(client.clone(), options()).await.unwrap();
    let shape = Shape { namespace: "fleet".into(), workers: 1, version: VERSIONS[0].into() };
    fleet.create(&shape, CLUSTERS, CLUSTERS).await.unwrap();
    converge(&client, "created").await;
    assert_eq!(fleet.datacenter.names().len(), 2 * CLUSTERS);

    // Changes and power cuts, then a kill of the management plane, then both again.
    let churn = |seed: u64| Churn {
        seed,
        pause: Duration::from_millis(100),
        changes: Some(CLUSTERS),
        versions: VERSIONS.map(str::to_owned).into(),
        workers: 1,
    };
    let first = fleet.churn(&churn(SEED), std::future::pending()).await;
    manager.kill().await;
    let manager = site.manager(faults()).await;
    let second = fleet.churn(&churn(SEED + 1), std::future::pending()).await;
    let all = |tally: &Tally| tally.upgrades + tally.scalings + tally.configurations + tally.deleted_machines;
    assert!(all(&first) > 0 && all(&second) > 0, "{first:?} {second:?}");
    converge(&client, "changed").await;

    // Another process powers the same machines on.
    let machines = fleet.datacenter.names();
    fleet.stop().await;
    let fleet = Fleet::start(client.clone(), options()).await.unwrap();
    assert_eq!(fleet.datacenter.names(), machines);
    converge(&client, "powered on again").await;

    tokio::time::timeout(LIMIT, fleet.delete()).await.expect("timed out deleting the fleet").unwrap();
    eventually_within(LIMIT, || async {
        let left = fleet.datacenter.names();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    fleet.stop().await;
    site.close(manager).await;
}
