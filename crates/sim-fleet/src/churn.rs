//! Random changes and faults. Each is a pure function of the seed and of the cluster.

use std::sync::Arc;
use std::time::Duration;

use drover_api::capi::v1beta2::Machine;
use drover_api::labels::capi::CLUSTER_NAME;
use drover_api::labels::rke::WORKER_ROLE;
use drover_api::provisioning::v1::Cluster;
use drover_runtime::Error;
use drover_runtime::error::is_not_found;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use crate::clusters::{self, WORKER_POOL};
use crate::datacenter::Datacenter;
use crate::fleet::Fleet;

/// Machines without power are switched on again after this.
const OUTAGE: Duration = Duration::from_millis(500);
/// The maximum number of writes before the power of a machine is cut.
const MOST_WRITES: usize = 20;

/// A random number generator that returns the same numbers for the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `sides`, or 0 if `sides` is 0.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        usize::try_from(z % u64::try_from(sides.max(1)).unwrap_or(1)).unwrap_or(0)
    }
}

/// A change of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Upgrade(String),
    Scale(i32),
    Configure(usize),
    DeleteMachine,
    /// One of its machines loses power after this number of writes.
    PowerCut(u64),
}

/// The number of changes by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    pub upgrades: usize,
    pub scalings: usize,
    pub configurations: usize,
    pub deleted_machines: usize,
    pub power_cuts: usize,
    /// Changes that the API rejected, for example because of a conflict.
    pub refused: usize,
}

impl Tally {
    fn count(&mut self, change: &Change) {
        *match change {
            Change::Upgrade(_) => &mut self.upgrades,
            Change::Scale(_) => &mut self.scalings,
            Change::Configure(_) => &mut self.configurations,
            Change::DeleteMachine => &mut self.deleted_machines,
            Change::PowerCut(_) => &mut self.power_cuts,
        } += 1;
    }
}

/// Selects the next change of a cluster. `versions` are in ascending order; `workers` is the approximate size of pools.
pub fn next_change(dice: &mut Dice, cluster: &Cluster, versions: &[String], workers: i32) -> Change {
    let configure = |dice: &mut Dice| Change::Configure(50 + dice.roll(100));
    match dice.roll(5) {
        0 => {
            let current = &cluster.spec.kubernetes_version;
            let at = versions.iter().position(|version| version == current);
            match at.and_then(|at| versions.get(at + 1)) {
                Some(newer) => Change::Upgrade(newer.clone()),
                None => configure(dice),
            }
        }
        1 => {
            let most = usize::try_from(workers).unwrap_or(0) + 2;
            // A cluster without workers is not Ready.
            let size = 1 + i32::try_from(dice.roll(most)).unwrap_or(workers);
            if Some(size) == worker_count(cluster) { configure(dice) } else { Change::Scale(size) }
        }
        2 => configure(dice),
        3 => Change::DeleteMachine,
        _ => Change::PowerCut(dice.roll(MOST_WRITES) as u64),
    }
}

/// The desired number of workers of a cluster.
pub fn worker_count(cluster: &Cluster) -> Option<i32> {
    let pools = &cluster.spec.rke_config.as_ref()?.machine_pools;
    pools.iter().find(|pool| pool.name == WORKER_POOL)?.quantity
}

/// The merge patch for a change of the spec. It contains the resourceVersion, because it replaces the list of pools.
fn patch(cluster: &Cluster, change: &Change) -> Option<Value> {
    let spec = match change {
        Change::Upgrade(version) => json!({"kubernetesVersion": version}),
        Change::Scale(size) => {
            let mut pools = cluster.spec.rke_config.as_ref()?.machine_pools.clone();
            pools.iter_mut().find(|pool| pool.name == WORKER_POOL)?.quantity = Some(*size);
            json!({"rkeConfig": {"machinePools": pools}})
        }
        Change::Configure(pods) => {
            json!({"rkeConfig": {"machineGlobalConfig": {"kubelet-arg": [format!("max-pods={pods}")]}}})
        }
        Change::DeleteMachine | Change::PowerCut(_) => return None,
    };
    Some(json!({"metadata": {"resourceVersion": cluster.metadata.resource_version}, "spec": spec}))
}

/// Options of the random changes.
#[derive(Clone, Debug)]
pub struct Churn {
    pub seed: u64,
    /// Time between two changes.
    pub pause: Duration,
    /// Number of changes; unlimited if not set.
    pub changes: Option<usize>,
    /// Versions in ascending order.
    pub versions: Vec<String>,
    /// The approximate size of worker pools.
    pub workers: i32,
}

impl Fleet {
    /// Changes random clusters at the given rate until `over`. Machines without power are switched on again.
    pub async fn churn(&self, churn: &Churn, over: impl Future<Output = ()>) -> Tally {
        let (mut dice, mut tally) = (Dice::new(churn.seed), Tally::default());
        let mut beats = tokio::time::interval(churn.pause);
        let mut left = churn.changes.unwrap_or(usize::MAX);
        let changes = async {
            while left > 0 {
                left -= 1;
                beats.tick().await;
                let mut all = self.clusters();
                all.sort_by_key(|cluster| cluster.name_any());
                let Some(cluster) = all.get(dice.roll(all.len())) else { continue };
                let change = next_change(&mut dice, cluster, &churn.versions, churn.workers);
                let pick = dice.roll(usize::MAX);
                match carry_out(self.client(), &self.datacenter, cluster, &change, pick).await {
                    Ok(()) => tally.count(&change),
                    Err(error) => {
                        tracing::warn!(
                            cluster = cluster.name_any(),
                            ?change,
                            error = error.chain(),
                            "not changed"
                        );
                        tally.refused += 1;
                    }
                }
            }
        };
        let power = async {
            loop {
                tokio::time::sleep(OUTAGE).await;
                self.datacenter.restore_power().await;
            }
        };
        tokio::select! {
            () = changes => {}
            () = power => {}
            () = over => {}
        }
        // Cancel scheduled power cuts, so that the clusters can converge.
        self.datacenter.end_power_cuts().await;
        tally
    }
}

async fn carry_out(
    client: &Client,
    datacenter: &Datacenter,
    cluster: &Arc<Cluster>,
    change: &Change,
    pick: usize,
) -> Result<(), Error> {
    if let Some(patch) = patch(cluster, change) {
        return clusters::change(client, cluster, patch).await;
    }
    let name = cluster.name_any();
    match change {
        Change::PowerCut(writes) => {
            let prefix = format!("{name}-");
            let own: Vec<String> =
                datacenter.names().into_iter().filter(|machine| machine.starts_with(&prefix)).collect();
            if let Some(victim) = own.get(pick % own.len().max(1)) {
                datacenter.with(victim, async |machine| machine.host.crash_after_writes(*writes)).await;
            }
            Ok(())
        }
        _ => {
            let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
            let machines: Api<Machine> = Api::namespaced(client.clone(), namespace);
            let params = ListParams::default().labels(&format!("{CLUSTER_NAME}={name},{WORKER_ROLE}=true"));
            let found =
                machines.list(&params).await.map_err(Error::api(format!("list Machines of {name}")))?;
            let Some(victim) = found.items.get(pick % found.items.len().max(1)) else { return Ok(()) };
            match machines.delete(&victim.name_any(), &DeleteParams::default()).await {
                Err(error) if !is_not_found(&error) => {
                    Err(Error::api(format!("delete Machine {}", victim.name_any()))(error))
                }
                _ => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusters::{Shape, cluster};

    fn versions() -> Vec<String> {
        ["v1", "v2", "v3"].map(str::to_owned).into()
    }

    fn sample(version: &str) -> Cluster {
        let shape = Shape { namespace: "fleet".into(), workers: 1, version: version.into() };
        cluster(&shape, "sim-0001")
    }

    #[test]
    fn changes_depend_on_the_seed_and_all_kinds_occur() {
        let play = |seed: u64| -> Vec<Change> {
            let mut dice = Dice::new(seed);
            (0..200).map(|_| next_change(&mut dice, &sample("v1"), &versions(), 1)).collect()
        };
        assert_eq!(play(7), play(7));
        assert_ne!(play(7), play(8));
        let mut tally = Tally::default();
        play(7).iter().for_each(|change| tally.count(change));
        let Tally { upgrades, scalings, configurations, deleted_machines, power_cuts, .. } = tally;
        assert!([upgrades, scalings, configurations, deleted_machines, power_cuts].iter().all(|n| *n > 10));
    }

    #[test]
    fn versions_only_increase_and_sizes_stay_near_the_given_one() {
        let mut dice = Dice::new(1);
        for _ in 0..500 {
            match next_change(&mut dice, &sample("v3"), &versions(), 1) {
                Change::Upgrade(version) => panic!("v3 is the newest version, but got {version}"),
                Change::Scale(size) => assert!((1..=3).contains(&size) && size != 1),
                _ => {}
            }
        }
    }

    #[test]
    fn a_patch_changes_the_worker_pool_and_has_the_resource_version() {
        let mut before = sample("v1");
        before.metadata.resource_version = Some("7".into());
        let patch = patch(&before, &Change::Scale(3)).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let pools = &patch["spec"]["rkeConfig"]["machinePools"];
        assert_eq!((&pools[0]["quantity"], &pools[1]["quantity"]), (&json!(1), &json!(3)));
        assert_eq!(super::patch(&before, &Change::DeleteMachine), None);
    }
}
