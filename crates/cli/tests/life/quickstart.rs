//! Points 1 and 5: creating, stopping, restarting and deleting a cluster.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::CLUSTER;
use crate::common::{self, Answer, Person, condition, eventually, items, name, text, when};
use crate::who::{Identities, machines, settled};

/// Point 1: from nothing to Ready, with plain lines and with kubeconfigs that only their owner can read. Returns the
/// printed command that stops it.
pub(crate) fn begins(person: &Person) -> String {
    let output = person.quickstart(&["--detach"]).ok();
    let (manager, demo) =
        (person.data_dir.join("kubeconfig.yaml"), person.data_dir.join("clusters/demo.kubeconfig"));
    for file in [&manager, &demo] {
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
        assert!(output.contains(file.to_str().unwrap()), "the end names {}:\n{output}", file.display());
    }
    assert!(!output.contains('\x1b'), "no escapes where there is no terminal:\n{output}");
    let stages: Vec<&str> = output.lines().filter(|line| line.contains("s  machine demo-")).collect();
    assert!(stages.iter().any(|line| line.contains("waiting for")), "what machines wait for:\n{output}");
    assert_eq!(output.matches("cluster demo: Ready").count(), 1, "{output}");
    for machine in machines(person).iter().map(name) {
        let last = stages.iter().rfind(|line| line.contains(&machine)).unwrap_or_else(|| panic!("{output}"));
        assert!(last.ends_with(": Running"), "the last line is {last:?}:\n{output}");
    }
    let next: Vec<&str> = output.lines().skip_while(|line| !line.starts_with("Try next")).skip(1).collect();
    let commands: Vec<&&str> = next.iter().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(commands.len(), 3, "three commands to try next:\n{output}");
    for line in commands {
        copied(person, line.trim()).ok();
    }
    let refused = person.quickstart(&["--detach"]).refused();
    assert!(refused.contains("is already running") && refused.contains("--stop"), "{refused}");
    let refused = person.quickstart(&[]).refused();
    assert!(refused.contains("is already running") && refused.contains("--stop"), "{refused}");
    person.kubectl(&["wait", "--for=condition=Ready", CLUSTER, "--timeout=10s"]).ok();
    hint(&output, "--stop")
}

/// A command that was printed between backquotes.
#[track_caller]
fn hint(output: &str, part: &str) -> String {
    let printed = output.split('`').skip(1).step_by(2).find(|command| command.contains(part));
    printed.unwrap_or_else(|| panic!("no command with {part}:\n{output}")).to_owned()
}

/// Runs a printed command in a shell.
fn copied(person: &Person, command: &str) -> Answer {
    common::run(person.command("sh").args(["-c", command]), command)
}

/// Point 1: stopping powers off the machines and keeps the disks; the same command continues with the same machines
/// and nodes.
pub(crate) fn stops_and_starts_again(person: &Person, stop: &str) {
    let before = Identities::of(person).but_processes();
    let output = copied(person, stop).ok();
    let again = hint(&output, "quickstart");
    assert!(person.drover(&["get", "clusters"]).refused().contains("does not answer"));
    let listed = person.drover(&["machine", "ls"]).ok();
    assert!(listed.contains("Stopped") && !listed.contains("Running"), "{listed}");
    assert!(person.drover(&["quickstart", "--stop"]).ok().contains("no quickstart was running"));
    assert_eq!(person.processes(), Vec::<String>::new(), "a process was left");
    assert!(!person.data_dir.join("quickstart.ready").exists(), "a file still marks it as running");

    assert!(again.contains(" --bind 127.0.0.1:0"), "the same --bind: {again}");
    let output = copied(person, &format!("{again} --detach --machines 50")).ok();
    assert!(output.contains("--machines has no effect"), "flags for a new cluster:\n{output}");
    eventually(|| {
        let nodes = items(&person.get_demo(&["nodes"]));
        when(
            nodes.iter().all(|node| condition(node, "Ready") == "True"),
            nodes.iter().map(name).collect::<Vec<_>>(),
        )
    });
    settled(person);
    assert_eq!(Identities::of(person).but_processes(), before, "the same machines and nodes");
}

/// Point 5: the cluster is deleted with everything it created; the machine that a user registered remains.
pub(crate) fn deletes_the_cluster(person: &Person) {
    person.kubectl(&["delete", CLUSTER, "--timeout=180s"]).ok();
    let kinds = "clusters.cluster.x-k8s.io,machinedeployments,machinesets,machines,rkecontrolplanes,rkeclusters,\
                 rkebootstraps,rkebootstraptemplates,custommachines,localmachines,localmachinetemplates,localconfigs,\
                 jobs,pods,secrets,serviceaccounts,roles,rolebindings,configmaps";
    eventually(|| {
        let left = person.kubectl(&["get", &kinds.replace(' ', ""), "-o", "name"]).ok();
        let own = ["serviceaccount/default", "configmap/kube-root-ca.crt"];
        let left: Vec<&str> = left.lines().filter(|line| !own.contains(line)).collect();
        when(left.is_empty(), format!("{left:?}"))
    });
    assert_eq!(person.kubectl(&["get", "clusters.management.cattle.io", "-o", "name"]).ok(), "");
    let namespaces = person.kubectl(&["get", "namespaces", "-o", "name"]).ok();
    assert!(!namespaces.contains("c-m-"), "{namespaces}");
    let listed = person.drover(&["machine", "ls", "-q"]).ok();
    assert_eq!(listed.trim(), "mine", "machines");
    eventually(|| {
        let left = files_of_machines(&person.data_dir);
        when(left.is_empty(), left)
    });
    let kubeconfig = person.data_dir.join("clusters/demo.kubeconfig");
    eventually(|| when(!kubeconfig.exists(), "the kubeconfig still exists"));
    person.drover(&["machine", "rm", "-y", "mine"]).ok();
    assert_eq!(person.drover(&["machine", "ls", "-q"]).ok(), "");
}

/// A cluster that is still being deleted when the next quickstart starts is created again.
pub(crate) fn starts_again_while_the_cluster_is_being_deleted(person: &Person) {
    person.drover(&["quickstart", "--stop"]).ok();
    person.quickstart(&["--detach", "--machines", "2"]).ok();
    let first = text(&person.get(&[CLUSTER]), "/metadata/uid");
    person.kubectl(&["delete", CLUSTER, "--wait=false"]).ok();
    person.drover(&["quickstart", "--stop"]).ok();
    let output = person.quickstart(&["--detach"]).ok();
    assert_ne!(text(&person.get(&[CLUSTER]), "/metadata/uid"), first, "{output}");
    assert_eq!(items(&person.get_demo(&["nodes"])).len(), 3);
}

/// A killed quickstart could not power off its machines; `--stop` does.
pub(crate) fn stops_machines_of_a_killed_quickstart(person: &Person) {
    let pid = std::fs::read_to_string(person.data_dir.join("quickstart.pid")).unwrap();
    let pid = nix::unistd::Pid::from_raw(pid.parse().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    eventually(|| {
        let listed = person.drover(&["machine", "ls"]).ok();
        let gone = person.drover(&["get", "clusters"]).refused().contains("does not answer");
        when(gone && listed.contains("Running"), listed)
    });
    let output = person.drover(&["quickstart", "--stop"]).ok();
    assert!(output.contains("its machines were"), "{output}");
    assert_eq!(person.processes(), Vec::<String>::new());
    assert!(person.drover(&["quickstart", "--stop"]).ok().contains("no quickstart was running"));
}

/// Point 1: `--delete` leaves no process, mount, file or address.
pub(crate) fn leaves_nothing(person: &Person) {
    let bridges = addresses();
    assert!(person.drover(&["quickstart", "--delete"]).ok().contains("removed everything"));
    assert!(!person.data_dir.exists());
    eventually(|| when(person.processes().is_empty(), person.processes()));
    assert_eq!(person.mounts(), Vec::<String>::new());
    assert!(addresses().is_subset(&bridges), "an address was added to this host");
    assert!(person.drover(&["quickstart", "--delete"]).ok().contains("nothing to delete"));
}

fn addresses() -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    table.lines().map(|line| line.trim().to_owned()).collect()
}

/// Files in the data directory with the name of a machine of the demo cluster.
fn files_of_machines(dir: &Path) -> Vec<String> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let named = entry.file_name().to_string_lossy().contains("demo-");
        if named {
            found.push(entry.path().display().to_string());
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name() != "mine" {
            found.extend(files_of_machines(&entry.path()));
        }
    }
    found
}
