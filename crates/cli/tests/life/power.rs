//! Points 1 and 6: the state of the machines after a command ends by itself, by Ctrl-C or by a kill, and under a
//! server, which powers them neither on nor off.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::processes::{Process, processes};
use crate::common::{PATIENCE, Person, condition, eventually, items, name, when};
use crate::who::{Identities, settled};

/// A command in the foreground that ends with the test.
struct Foreground(Child);

impl Foreground {
    fn start(person: &Person, words: &[&str]) -> Self {
        let mut command = person.command(person.binary());
        let command = command.args(words).args(["--bind", "127.0.0.1:0"]).stdin(Stdio::null());
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Polls at short intervals for something that does not last, as long as the command runs.
    fn until(&mut self, what: &str, mut seen: impl FnMut(u32) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !seen(self.0.id()) {
            assert_eq!(self.0.try_wait().unwrap(), None, "it ended before {what}");
            assert!(Instant::now() < deadline, "timed out after {PATIENCE:?}: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn ends_at(mut self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
        let status = eventually(|| self.0.try_wait().unwrap().ok_or("it runs"));
        assert_eq!(status.code(), Some(0), "{signal}");
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn exits_when_ready(person: &Person) {
    let output = person.quickstart(&["--exit-when-ready", "--machines", "2"]).ok();
    assert!(output.contains("Cluster demo is Ready") && output.contains("their disks are kept"), "{output}");
    assert!(
        !output.contains("Try next") && output.contains("starts it again"),
        "there are no commands to try: {output}"
    );
    assert!(person.data_dir.join("clusters/demo.kubeconfig").exists());
    all_are_off(person);
}

pub(crate) fn powers_off_at_ctrl_c(person: &Person) {
    let quickstart = Foreground::start(person, &["quickstart"]);
    eventually(|| when(person.data_dir.join("quickstart.ready").exists(), "not ready"));
    quickstart.ends_at(Signal::SIGINT);
    all_are_off(person);
}

/// Ctrl-C while waiting for a background quickstart stops that one, too.
pub(crate) fn stops_the_background_process_at_ctrl_c(person: &Person) {
    let mut quickstart = Foreground::start(person, &["quickstart", "--detach"]);
    quickstart.until("machines run", |_| states(person).iter().any(|(_, state)| state == "Running"));
    kill(Pid::from_raw(quickstart.0.id() as i32), Signal::SIGINT).unwrap();
    let status = eventually(|| quickstart.0.try_wait().unwrap().ok_or("it runs"));
    assert_eq!(status.code(), Some(130));
    all_are_off(person);
    assert!(person.drover(&["quickstart", "--stop"]).ok().contains("no quickstart was running"));
}

/// Ctrl-C while machines are powered on one after the other leaves all of them off.
pub(crate) fn powers_off_while_it_powers_on(person: &Person) {
    let dir = person.data_dir.to_str().unwrap();
    let more: Vec<String> = (0..6).map(|number| format!("more-{number}")).collect();
    for name in &more {
        person.drover(&["machine", "create", "--driver", "local", name, "--data-dir", dir]).ok();
    }
    person.drover(&["quickstart", "--stop"]).ok();
    let log = person.data_dir.join("drover.log");
    let begun = || std::fs::read_to_string(&log).unwrap_or_default().matches("powering on").count();
    for wanted in [1, 3, 5] {
        let before = begun();
        let mut quickstart = Foreground::start(person, &["quickstart"]);
        quickstart.until("it powers on", |_| begun() >= before + wanted);
        quickstart.ends_at(Signal::SIGINT);
        are_off(person, 2 + more.len());
    }
    for name in &more {
        person.drover(&["machine", "rm", "-y", name]).ok();
    }
    all_are_off(person);
}

/// Ctrl-C during the start, at several moments after it has opened the store, while machines of a killed quickstart
/// are on.
pub(crate) fn powers_off_machines_of_a_killed_quickstart(person: &Person) {
    let has_store = |pid: u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|file| file.ends_with("db/lock"))
    };
    let run = || states(person).iter().all(|(_, state)| state == "Running");
    for moment in [0, 100, 200, 400].map(Duration::from_millis) {
        let mut killed = Foreground::start(person, &["quickstart"]);
        killed.until("machines run", |_| run());
        drop(killed);
        assert!(run(), "{:?}", states(person));
        let mut quickstart = Foreground::start(person, &["quickstart"]);
        quickstart.until("it has the store", has_store);
        std::thread::sleep(moment);
        quickstart.ends_at(Signal::SIGINT);
        all_are_off(person);
    }
}

/// A server leaves the machines on or off as they are; a user starts them.
pub(crate) fn a_server_does_not_change_the_power_of_machines(person: &Person) {
    let server = Foreground::start(person, &["server"]);
    eventually(|| when(person.drover(&["get", "clusters"]).code == 0, "no response"));
    let names = states(person);
    assert!(names.iter().all(|(_, state)| state == "Stopped"), "{names:?}");
    for (name, _) in &names {
        person.drover(&["machine", "start", name]).ok();
    }
    answers_through_the_tunnel(person);
    settled(person);
    let before = Identities::of(person);

    // A machine whose process 1 is killed stays off until a user starts it.
    let worker = before.0.keys().find(|name| name.contains("worker")).unwrap();
    let first = |process: &Process| {
        process.words.contains("drover machine-init") && process.machine(person).as_ref() == Some(worker)
    };
    let first = processes().into_iter().find(first).unwrap();
    kill(Pid::from_raw(first.pid), Signal::SIGKILL).unwrap();
    eventually(|| {
        let nodes = items(&person.get_demo(&["nodes"]));
        let node = nodes.iter().find(|node| name(node) == *worker).cloned().unwrap_or_default();
        when(condition(&node, "Ready") != "True", format!("{:#}", node["status"]["conditions"]))
    });
    assert!(states(person).contains(&(worker.clone(), "Stopped".to_owned())));
    person.drover(&["machine", "start", worker]).ok();
    settled(person);
    assert_eq!(Identities::of(person).but_processes(), before.but_processes());

    // Stopping the server leaves them running, and the next server finds them.
    let running = Identities::of(person);
    server.ends_at(Signal::SIGTERM);
    assert!(states(person).iter().all(|(_, state)| state == "Running"), "{:?}", states(person));
    let server = Foreground::start(person, &["server"]);
    answers_through_the_tunnel(person);
    settled(person);
    assert_eq!(Identities::of(person), running);
    server.ends_at(Signal::SIGTERM);
}

/// The server has another port each time, and its kubeconfigs are updated.
fn answers_through_the_tunnel(person: &Person) {
    eventually(|| {
        let answer = person.drover(&["get", "kubeconfig", "demo"]);
        std::fs::write(person.data_dir.join("clusters/demo.kubeconfig"), &answer.out).unwrap();
        let nodes = person.kubectl_demo(&["get", "nodes"]);
        when(nodes.code == 0, answer.err + &nodes.err)
    });
}

fn all_are_off(person: &Person) {
    are_off(person, 2);
}

/// The holder exits when no machine is on, so it may outlive the command for a moment.
fn are_off(person: &Person, count: usize) {
    let states = states(person);
    assert!(states.len() == count && states.iter().all(|(_, state)| state == "Stopped"), "{states:?}");
    eventually(|| when(person.processes().is_empty(), person.processes()));
}

fn states(person: &Person) -> Vec<(String, String)> {
    let listed: Value = serde_json::from_str(&person.drover(&["machine", "ls", "-o", "json"]).ok()).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    listed
        .as_array()
        .unwrap()
        .iter()
        .map(|machine| (text(&machine["name"]), text(&machine["state"])))
        .collect()
}
