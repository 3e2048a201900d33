//! Managers that die at a write, and managers whose writes or answers are lost: the cluster becomes the same, and all of it
//! is taken down again.
//!
//! In the first life the writes 1, 1 + GAP, 1 + 2 GAP … are hit, in the second one 2, 2 + GAP …, so that GAP lives hit every
//! write. That many are lived with `DROVER_CRASH_EVERY=1`, otherwise a sample that differs from run to run, as does whether
//! the write or its answer is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_runtime::fault::{Fault, Plan};
use drover_testkit::demo;
use futures::{StreamExt, stream};

use crate::cluster::nodes;
use crate::players::play;
use crate::world::World;

/// Writes from one fault to the next. A manager has to get further than to where the last one died, and begins with some
/// twenty writes where Jobs are to be made.
const GAP: u64 = 32;
const SAMPLE: u64 = 4;
/// Most of a life is waiting.
const AT_ONCE: usize = 2;
const LOOK: Duration = Duration::from_millis(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_2_managers_that_die_at_writes_have_successors_that_make_nothing_twice() {
    all_lives("deaths", [Fault::Crash, Fault::CrashBefore]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_loses_any_write_or_answer_goes_on() {
    all_lives("losses", [Fault::Lost, Fault::AnswerLost]).await;
}

async fn all_lives(what: &str, faults: [Fault; 2]) {
    let start = Instant::now();
    let chance = u64::from(std::process::id());
    let lives = if std::env::var_os("DROVER_CRASH_EVERY").is_some() { GAP } else { SAMPLE };
    let lived = stream::iter(0..lives).map(|n| {
        let first = 1 + (chance + n * (GAP / lives)) % GAP;
        life(first, faults[(chance / 2 + n) as usize % 2])
    });
    let faults =
        lived.buffer_unordered(AT_ONCE).fold(0, |sum, faults| std::future::ready(sum + faults)).await;
    eprintln!("{faults} {what} in {lives} lives, {:.0} s", start.elapsed().as_secs_f32());
}

/// A whole life with a fault at this write and at every GAP-th after it; how many there were.
async fn life(first: u64, fault: Fault) -> u64 {
    let when = format!("{fault:?} at write {first} and at every {GAP}th after it");
    let world = Arc::new(World::start().await);
    let _players = play(&world);
    let over = AtomicBool::new(false);
    let managers = async {
        let (mut at, mut faults) = (first, 0);
        while !over.load(Ordering::SeqCst) {
            let plan = Plan::every(fault, at, GAP);
            let manager = world.manager(Some(plan.clone()));
            let is_dead = || plan.struck() && matches!(fault, Fault::Crash | Fault::CrashBefore);
            while !is_dead() && !over.load(Ordering::SeqCst) {
                tokio::time::sleep(LOOK).await;
            }
            manager.stop().await;
            faults += if is_dead() { 1 } else { plan.faults() };
            at = GAP;
        }
        faults
    };
    let whole = async {
        demo::make(&world.objects).await;
        demo::ready(&world.objects, &when).await;
        demo::exactly_once(&world.objects, &when).await;
        assert_eq!(nodes(&world).await.len(), 3, "Nodes after {when}");
        demo::remove(&world.objects, &when).await;
        over.store(true, Ordering::SeqCst);
    };
    let (faults, ()) = tokio::join!(managers, whole);
    faults
}
