//! Golden scenarios: what the control plane says and writes, line by line. `UPDATE_GOLDEN=1` rewrites them.

use super::world::World;
use crate::controlplane::decide::End;

fn golden(name: &str, world: &World) {
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = world.log.join("\n") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{path} differs; UPDATE_GOLDEN=1 rewrites it");
}

#[test]
fn one_server_two_workers() {
    let mut world = World::new(&[("demo-cp-a", "ec"), ("demo-w-a", "w"), ("demo-w-b", "w")]);
    assert_eq!(world.settle(), End::Ready);
    golden("one-server-two-workers", &world);
}

#[test]
fn three_all_role_machines() {
    let mut world = World::new(&[("a", "ecw"), ("b", "ecw"), ("c", "ecw")]);
    assert_eq!(world.settle(), End::Ready);
    golden("three-all-role-machines", &world);
}

#[test]
fn upgrade_goes_server_first_then_one_worker_at_a_time() {
    let mut world = World::new(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]);
    assert_eq!(world.settle(), End::Ready);
    world.log.clear();
    world.scope.spec.kubernetes_version = "v1.34.2+k3s1".into();
    assert_eq!(world.settle(), End::Ready);
    golden("upgrade", &world);
}

#[test]
fn nothing_is_registered_yet() {
    let mut world = World::new(&[("cp", "ec")]);
    assert!(matches!(world.settle(), End::Waiting(_)));
    golden("no-worker", &world);
}

#[test]
fn a_dead_worker_holds_up_nobody_but_itself() {
    let mut world = World::new(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]);
    world.dead.push("w1".into());
    assert!(matches!(world.settle(), End::Waiting(_)));
    golden("dead-worker", &world);
}

#[test]
fn init_node_is_deleted() {
    let mut world = World::new(&[("a", "ecw"), ("b", "ecw"), ("c", "ecw")]);
    assert_eq!(world.settle(), End::Ready);
    world.log.clear();
    world.entry_mut("a").machine.deleting = true;
    assert_eq!(world.settle(), End::Ready);
    golden("init-node-deleted", &world);
    assert!(["b", "c"].iter().all(|name| world.entry(name).joined_to() != "https://10.0.0.11:6443"));
}
