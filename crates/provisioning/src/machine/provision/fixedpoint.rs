//! From any state passes come to an end: a machine has its server or is deleted, and no server is left behind.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::decide::Action;
use super::scope::JobView;
use super::tests::World;
use super::waits::Waiting;

/// More rounds than any state needs.
const MOST: usize = 60;

/// Where a machine begins.
#[derive(Clone, Debug)]
struct Start {
    finalizer: bool,
    label: bool,
    owner: bool,
    machine: bool,
    owned_by_set: bool,
    deleting: bool,
    force: bool,
    provider: bool,
    terminating: bool,
    blocked: bool,
    attempt: i64,
    created: Option<&'static str>,
    removed: Option<&'static str>,
    failed: bool,
    job: Option<JobView>,
    /// How many Jobs fail from now on.
    failures: usize,
}

fn job() -> impl Strategy<Value = JobView> {
    (any::<bool>(), any::<bool>(), 0..3).prop_map(|(remove, deleting, end)| JobView {
        remove,
        deleting,
        complete: end == 1,
        failed: (end == 2).then(|| ("Error".to_owned(), "on purpose".to_owned())),
    })
}

fn start() -> impl Strategy<Value = Start> {
    let status = || prop::option::of(prop::sample::select(vec!["True", "False", "Unknown"]));
    let flags = (
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
    );
    (flags, 0..4_i64, status(), status(), any::<bool>(), prop::option::of(job()), 0..3_usize).prop_map(
        |((a, b), attempt, created, removed, failed, job, failures)| Start {
            finalizer: a.0,
            label: a.1,
            owner: a.2,
            machine: a.2 && a.3,
            owned_by_set: a.4,
            deleting: b.0,
            force: b.1,
            provider: b.2,
            terminating: b.3,
            blocked: b.4,
            attempt,
            created: created.filter(|_| attempt > 0),
            removed: removed.filter(|_| attempt > 0 && b.0),
            failed,
            job: job.filter(|_| attempt > 0),
            failures,
        },
    )
}

fn world(start: &Start) -> World {
    let mut world = World::new();
    let meta = &mut world.object["metadata"];
    if start.finalizer {
        meta["finalizers"] = json!(["wrangler.cattle.io/machine-provision-remove"]);
    }
    if start.label {
        meta["labels"] = json!({"rke.cattle.io/capi-machine-name": "m1"});
    }
    if start.force {
        meta["annotations"] = json!({"provisioning.cattle.io/force-machine-remove": "true"});
    }
    if start.provider {
        world.object["spec"]["providerID"] = json!("local://m1");
    }
    let condition =
        |(type_, status): (&str, Option<&str>)| status.map(|status| json!({"type": type_, "status": status}));
    let conditions = [("CreateJob", start.created), ("DeleteJob", start.removed)];
    let conditions: Vec<_> = conditions.into_iter().filter_map(condition).collect();
    world.object["status"] = json!({"attempt": start.attempt, "conditions": conditions});
    if start.failed {
        world.object["status"]["failedAt"] = json!("2025-12-31T23:59:00Z");
    }
    if start.deleting {
        world.delete();
    }
    world.scope.owner = start.owner.then(|| "m1".to_owned());
    world.scope.capi_machine = start.machine.then(|| "m1".to_owned());
    world.scope.owned_by_set = start.owned_by_set;
    world.scope.namespace_terminating = start.terminating;
    world.scope.blocked = start.blocked.then_some(Waiting::Machine);
    if !start.machine {
        world.scope.blocked = Some(Waiting::Machine);
    }
    world.scope.job.clone_from(&start.job);
    world
}

/// What others do meanwhile: Jobs end, deleted Jobs disappear, gates open, the Node gives its id, and time passes.
fn surroundings(world: &mut World, failures: &mut usize) {
    match &mut world.scope.job {
        Some(job) if job.deleting => world.scope.job = None,
        Some(job) if !job.complete && job.failed.is_none() => {
            if *failures > 0 {
                *failures -= 1;
                job.failed = Some(("Error".into(), "on purpose".into()));
            } else {
                job.complete = true;
            }
        }
        _ => {}
    }
    if world.scope.capi_machine.is_some() {
        world.scope.blocked = None;
    }
    if world.object["status"]["ready"] == true {
        world.object["spec"]["providerID"] = json!("local://m1");
    }
    world.now += SignedDuration::from_mins(6);
}

proptest! {
    #[test]
    fn passes_come_to_an_end_from_any_state(start in start()) {
        let mut world = world(&start);
        let mut failures = start.failures;
        let deletable = start.finalizer || start.attempt > 0;
        let (mut removal_succeeded, mut unchanged) = (false, 0);
        for _ in 0..MOST {
            let before = (world.object.clone(), world.scope.job.clone());
            let had_job = world.scope.job.is_some();
            let actions = world.pass();
            let starts = actions.iter().filter(|action| matches!(action, Action::StartJob { .. })).count();
            prop_assert!(starts == 0 || (starts == 1 && !had_job), "one Job at a time: {actions:?}");
            if starts == 1 {
                let record = actions.iter().position(|action| *action == Action::Record);
                prop_assert_eq!(record, Some(0), "an attempt is recorded before its Job");
            }
            if world.gone {
                break;
            }
            let same = before == (world.object.clone(), world.scope.job.clone());
            unchanged = if same && actions.is_empty() { unchanged + 1 } else { 0 };
            if unchanged > 3 {
                break;
            }
            surroundings(&mut world, &mut failures);
            removal_succeeded |= world.scope.job.as_ref().is_some_and(|job| job.remove && job.complete);
        }
        let deleting = world.object["metadata"]["deletionTimestamp"].is_string();
        prop_assert!(world.gone || unchanged > 3, "no end: {:#}", world.object);
        if deleting && start.finalizer {
            prop_assert!(world.gone, "it is deleted: {:#}", world.object);
        }
        // Nothing is left behind silently.
        let proven = removal_succeeded
            || start.removed == Some("True")
            || start.job.as_ref().is_some_and(|job| job.remove && job.complete)
            || world.leftover.is_some()
            || (start.attempt == 0 && world.started.is_empty());
        prop_assert!(!world.gone || proven, "{start:?} {:?}", world.started);
        if !deleting && !start.deleting && start.machine && deletable {
            prop_assert_eq!(&world.object["status"]["ready"], true);
        }
        let _: Timestamp = world.now;
    }
}
