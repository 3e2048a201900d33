//! Crash tests: the management plane is killed at some of its writes, and machines lose power between some of theirs;
//! the cluster converges to the same state. A sample by default, with other writes in every run; far more with
//! `DROVER_CRASH_EVERY=1`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use drover_runtime::fault::{Fault, Plan};
use drover_testkit::demo;

use crate::life::sized;
use crate::site::Site;

const FAULTS: [Fault; 4] = [Fault::Crash, Fault::AnswerLost, Fault::CrashBefore, Fault::Lost];
const LOOK: Duration = Duration::from_millis(10);

fn every() -> bool {
    std::env::var_os("DROVER_CRASH_EVERY").is_some()
}

/// From Ready to deleted, without duplicates or leftovers.
async fn whole(site: &Site, faults: &str) {
    demo::make(&site.objects).await;
    demo::ready(&site.objects, faults).await;
    demo::exactly_once(&site.objects, faults).await;
    sized(site, 3).await;
    demo::remove(&site.objects, faults).await;
    assert!(site.datacenter.names().is_empty(), "machines left after {faults}");
}

/// Every management plane in this cluster's life has a fault after some writes; a killed one is replaced.
async fn life_under(gap: u64, first: u64) {
    let faults = format!("faults at write {first}, then after every {gap} writes");
    let mut plan = Plan::new(FAULTS[0], first);
    let (site, mut manager) = Site::start(Some(plan.clone())).await;
    let over = AtomicBool::new(false);
    let struck = AtomicU64::new(0);
    let reaper = async {
        while !over.load(Ordering::SeqCst) {
            tokio::time::sleep(LOOK).await;
            if !plan.struck() {
                continue;
            }
            let round = struck.fetch_add(1, Ordering::SeqCst) + 1;
            // Also after a call that was only lost: each manager has one fault, and then the next one is due.
            manager.kill().await;
            plan = Plan::new(FAULTS[round as usize % FAULTS.len()], gap);
            manager = site.manager(Some(plan.clone())).await;
        }
        manager
    };
    let life = async {
        whole(&site, &faults).await;
        over.store(true, Ordering::SeqCst);
    };
    let (manager, ()) = tokio::join!(reaper, life);
    eprintln!("{faults}: {} faults", struck.load(Ordering::SeqCst));
    site.close(manager).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_management_plane_killed_at_any_write_makes_and_removes_the_same_cluster() {
    // A new manager needs some eighty writes to take over the cluster; one that dies sooner makes no progress.
    const GAP: u64 = 200;
    let seed = u64::from(std::process::id());
    let lives = if every() { 25 } else { 1 };
    for life in 0..lives {
        life_under(GAP, 1 + (seed + life * (GAP / lives)) % GAP).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_loses_power_between_any_two_writes_carries_on() {
    let rounds = if every() { 20 } else { 1 };
    for round in 0..rounds {
        let (site, manager) = Site::start(None).await;
        // An install has some forty writes; the last power cuts happen during the deletion, or not at all.
        let seed = u64::from(std::process::id()) + round;
        let cuts: Vec<u64> = (0..6).map(|n| 1 + (seed * 7 + n * 11) % 40).collect();
        let faults = format!("power cuts after {cuts:?} writes");
        site.datacenter.cut_power(cuts);
        whole(&site, &faults).await;
        eprintln!("{faults}: {} not reached", site.datacenter.power_cuts_left());
        site.close(manager).await;
    }
}
