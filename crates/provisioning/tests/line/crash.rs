//! A manager that loses a call, or dies at one: the next one makes the same cluster of what it finds, and takes all of it
//! down again. A sample of the calls by default, every one with `DROVER_CRASH_EVERY=1`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_runtime::fault::{Fault, Plan};
use drover_testkit::demo;

use crate::cluster::nodes;
use crate::players::play;
use crate::world::World;

const FAULTS: [Fault; 4] = [Fault::Crash, Fault::CrashBefore, Fault::AnswerLost, Fault::Lost];
const SAMPLES: u64 = 5;
const LOOK: Duration = Duration::from_millis(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_killed_at_any_write_makes_and_removes_the_same_cluster() {
    let writes = life(Fault::Lost, 0).await;
    let every = std::env::var_os("DROVER_CRASH_EVERY").is_some();
    let step = if every { 1 } else { (writes / SAMPLES).max(1) };
    // Where the sample begins differs from run to run, so that many runs see every call.
    let first = 1 + u64::from(std::process::id()) % step;
    for (round, at) in (first..=writes).step_by(step as usize).enumerate() {
        life(FAULTS[round % FAULTS.len()], at).await;
    }
}

/// A whole life with a fault at one write; how many writes the first manager made.
async fn life(fault: Fault, at: u64) -> u64 {
    let told = format!("{fault:?} at write {at}");
    let start = Instant::now();
    let world = Arc::new(World::start().await);
    let players = play(&world);
    let plan = Plan::new(fault, at);
    let doomed = world.manager(Some(plan.clone()));
    let over = AtomicBool::new(false);
    let successor = async {
        while !plan.struck() && !over.load(Ordering::SeqCst) {
            tokio::time::sleep(LOOK).await;
        }
        let dies = plan.struck() && matches!(fault, Fault::Crash | Fault::CrashBefore);
        if dies {
            doomed.stop().await;
            (None, Some(world.manager(None)))
        } else {
            (Some(doomed), None)
        }
    };
    let whole = async {
        demo::make(&world.objects).await;
        demo::ready(&world.objects, &told).await;
        demo::exactly_once(&world.objects, &told).await;
        assert_eq!(nodes(&world).await.len(), 3, "Nodes after {told}");
        demo::remove(&world.objects, &told).await;
        over.store(true, Ordering::SeqCst);
    };
    let (managers, ()) = tokio::join!(successor, whole);
    let writes = plan.writes();
    for manager in [managers.0, managers.1].into_iter().flatten() {
        manager.stop().await;
    }
    drop(players);
    eprintln!("{told}: {:.1} s, {writes} writes of the first manager", start.elapsed().as_secs_f32());
    writes
}
