//! The whole life of a cluster with the built binary and the real `kubectl`, as root and as an ordinary user.
//!
//! Each test is one cluster's life, in order, because creating a cluster takes longer than all that follows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod in_place;
mod looks;
mod pools;
mod power;
mod quickstart;
mod who;

use common::{Identity, Person};
use in_place::{changes_a_pool, changes_the_config, changes_the_version};
use looks::{looks_around, uses_the_cluster};
use pools::{
    adds_and_removes_a_pool, brings_a_machine_of_their_own, powers_a_machine_off_and_on, replaces_a_machine,
    scales,
};
use power::{
    a_server_does_not_change_the_power_of_machines, exits_when_ready, powers_off_at_ctrl_c,
    powers_off_machines_of_a_killed_quickstart, powers_off_while_it_powers_on,
    stops_the_background_process_at_ctrl_c,
};
use quickstart::{
    begins, deletes_the_cluster, leaves_nothing, starts_again_while_the_cluster_is_being_deleted,
    stops_and_starts_again, stops_machines_of_a_killed_quickstart,
};

const FIRST: &str = "v1.34.1+k3s1";
const SECOND: &str = "v1.34.2+k3s1";
const CLUSTER: &str = "clusters.provisioning.cattle.io/demo";

#[test]
fn a_life_as_root() {
    let Some(person) = Person::new(Identity::Root) else { return };
    lives(&person);
    starts_again_while_the_cluster_is_being_deleted(&person);
    stops_machines_of_a_killed_quickstart(&person);
    leaves_nothing(&person);
}

#[test]
fn a_life_as_an_ordinary_user() {
    let Some(mut person) = Person::new(Identity::User) else { return };
    // Such directories exist, and printed commands must be quoted for a shell.
    person.data_dir = person.home().join("it's my data");
    lives(&person);
    leaves_nothing(&person);
}

#[test]
fn a_life_between_ctrl_c_and_a_server() {
    let Some(person) = Person::new(Identity::User) else { return };
    exits_when_ready(&person);
    powers_off_at_ctrl_c(&person);
    stops_the_background_process_at_ctrl_c(&person);
    powers_off_while_it_powers_on(&person);
    powers_off_machines_of_a_killed_quickstart(&person);
    a_server_does_not_change_the_power_of_machines(&person);
    leaves_nothing(&person);
}

/// All points, but for the last `--delete`.
fn lives(person: &Person) {
    let stop = begins(person);
    looks_around(person);
    uses_the_cluster(person);
    changes_the_version(person);
    changes_the_config(person);
    changes_a_pool(person);
    scales(person);
    replaces_a_machine(person);
    adds_and_removes_a_pool(person);
    brings_a_machine_of_their_own(person);
    powers_a_machine_off_and_on(person);
    stops_and_starts_again(person, &stop);
    deletes_the_cluster(person);
}
