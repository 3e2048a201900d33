//! From any state passes come to an end: nothing is written for ever, and no plan secret twice in a pass.

use std::collections::BTreeSet;

use drover_plan::keys;
use proptest::collection::vec;
use proptest::prelude::*;

use super::world::World;
use crate::controlplane::decide::{Action, decide};
use crate::controlplane::status;
use crate::keys::{annotations, labels};

/// More passes than any state needs.
const MOST: usize = 40;

/// Something that happens to a machine, or to the cluster.
#[derive(Clone, Debug)]
enum Event {
    Data(usize, &'static str, &'static str),
    Annotation(usize, &'static str, &'static str),
    InitNode(usize),
    Deleted(usize),
    NotReady(usize),
    Failed(usize),
    NoSecret(usize),
    Node(usize),
    Version(&'static str),
    Paused,
    Connected(bool),
    ClusterDeleted,
    NoTokens,
    Agents,
}

fn event() -> impl Strategy<Value = Event> {
    let data = prop::sample::select(vec![
        (keys::PLAN, "{}"),
        (keys::PLAN, "garbage"),
        (keys::PLAN_STATE, "failed"),
        (keys::PLAN_STATE, "succeeded"),
        (keys::PLAN_STATE, "in-progress"),
        (keys::PLAN_STATE, "odd"),
        (keys::FAILURE_COUNT, "3"),
        (keys::FAILURE_COUNT, "-1"),
        (keys::MAX_FAILURES, "2"),
        (keys::APPLIED_PLAN, "{}"),
        (keys::APPLIED_PLAN, "garbage"),
        (keys::PROBE_STATUSES, r#"{"kubelet":{"healthy":true}}"#),
        (keys::PROBE_STATUSES, r#"{"kubelet":{"healthy":false}}"#),
        (keys::PROBE_STATUSES, "garbage"),
        (keys::LAST_APPLY_TIME, "2026-01-01T00:00:00Z"),
    ]);
    let annotation = prop::sample::select(vec![
        (annotations::JOIN_URL, "https://10.9.9.9:6443"),
        (annotations::JOINED_TO, "https://10.9.9.9:6443"),
        (annotations::DRAIN_OPTIONS, r#"{"enabled":true}"#),
        (annotations::DRAIN_OPTIONS, "garbage"),
        (annotations::UNCORDON, r#"{"enabled":true}"#),
        (annotations::PLAN_PROBES_PASSED, ""),
        (annotations::PLAN_REARMED, "x y"),
    ]);
    let machine = 0..5_usize;
    prop_oneof![
        6 => (machine.clone(), data).prop_map(|(m, (key, value))| Event::Data(m, key, value)),
        4 => (machine.clone(), annotation).prop_map(|(m, (key, value))| Event::Annotation(m, key, value)),
        1 => machine.clone().prop_map(Event::InitNode),
        1 => machine.clone().prop_map(Event::Deleted),
        1 => machine.clone().prop_map(Event::NotReady),
        1 => machine.clone().prop_map(Event::Failed),
        1 => machine.clone().prop_map(Event::NoSecret),
        2 => machine.prop_map(Event::Node),
        1 => prop::sample::select(vec!["v1.34.2+k3s1", "v1.99.0+k3s1", "abc"]).prop_map(Event::Version),
        1 => Just(Event::Paused),
        1 => any::<bool>().prop_map(Event::Connected),
        1 => Just(Event::ClusterDeleted),
        1 => Just(Event::NoTokens),
        3 => Just(Event::Agents),
    ]
}

fn happens(world: &mut World, event: &Event) {
    let names: Vec<String> = world.scope.entries.iter().map(|entry| entry.name().to_owned()).collect();
    let name = |index: &usize| names[index % names.len()].clone();
    match event {
        Event::Data(m, key, value) if world.entry(&name(m)).secret.is_some() => {
            world.set_data(&name(m), &[(key, value)]);
        }
        Event::Annotation(m, key, value) if world.entry(&name(m)).secret.is_some() => {
            world.edit_secret(&name(m), |secret| {
                let notes = secret.metadata.annotations.get_or_insert_default();
                notes.insert((*key).to_owned(), (*value).to_owned());
            });
        }
        Event::InitNode(m) if world.entry(&name(m)).secret.is_some() => {
            world.edit_secret(&name(m), |secret| {
                let marks = secret.metadata.labels.get_or_insert_default();
                marks.insert(labels::INIT_NODE.to_owned(), "true".to_owned());
            });
        }
        Event::Deleted(m) => world.entry_mut(&name(m)).machine.deleting = true,
        Event::NotReady(m) => world.entry_mut(&name(m)).machine.infrastructure_ready = false,
        Event::Failed(m) => world.entry_mut(&name(m)).machine.failure = Some("broken".into()),
        Event::NoSecret(m) => world.entry_mut(&name(m)).secret = None,
        Event::Node(m) => {
            let machine = &mut world.entry_mut(&name(m)).machine;
            machine.kubelet_version = Some("v1.34.1+k3s1".into());
            machine.node_ref = Some(machine.name.clone());
        }
        Event::Version(version) => world.scope.spec.kubernetes_version = (*version).to_owned(),
        Event::Paused => world.scope.paused = true,
        Event::Connected(connected) => world.scope.connected = *connected,
        Event::ClusterDeleted => {
            let cluster = world.scope.cluster.as_mut().unwrap();
            (cluster.deleting, cluster.paused) = (true, true);
        }
        Event::NoTokens => world.scope.state_secret = crate::controlplane::scope::StateSecret::Missing,
        Event::Agents => {
            world.dead = names.iter().filter(|name| world.entry(name).secret.is_none()).cloned().collect();
            world.agents();
        }
        Event::Data(..) | Event::Annotation(..) | Event::InitNode(_) => {}
    }
}

/// Passes alone, until one has nothing to write. Nothing else moves meanwhile, not even time.
fn comes_to_an_end(world: &mut World) -> Result<(), TestCaseError> {
    for _ in 0..MOST {
        let decision = decide(&world.scope, world.now);
        let mut written = BTreeSet::new();
        for action in &decision.actions {
            if let Action::WriteSecret(write) = action {
                prop_assert!(written.insert(&write.machine), "{} is written twice", write.machine);
            }
        }
        let same = status::status(&world.scope, &decision, None, world.now) == world.scope.status;
        let done = decision.actions.is_empty() && same;
        world.pass();
        if done {
            prop_assert_eq!(&decide(&world.scope, world.now), &decision);
            return Ok(());
        }
    }
    Err(TestCaseError::fail(format!("no end:\n{}", world.log.join("\n"))))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn passes_come_to_an_end_from_any_state(
        roles in vec(prop::sample::select(vec!["e", "c", "w", "ec", "cw", "ecw"]), 1..5),
        events in vec((event(), any::<bool>()), 0..12),
        settled in any::<bool>(),
    ) {
        let names = ["a", "b", "c", "d", "e"];
        let machines: Vec<(&str, &str)> = names.into_iter().zip(roles.iter().copied()).collect();
        let mut world = World::new(&machines);
        if settled {
            for _ in 0..20 {
                world.pass();
                world.agents();
            }
        }
        for (event, pass) in &events {
            happens(&mut world, event);
            if *pass {
                world.pass();
            }
        }
        comes_to_an_end(&mut world)?;
    }
}
