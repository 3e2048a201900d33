//! `kill -9` of the server, of an agent, of a machine's process 1 and of the machines' holder, at chosen and at
//! random moments of a cluster's life. After every kill, the same command leads to the same end: Ready, with exactly
//! the wanted Machines, Nodes and local machines.
//!
//! `DROVER_CRASH_SEED` repeats a random run, `DROVER_CRASH_ROUNDS` makes it longer.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::processes::{Process, processes};
use common::{Identity, Person, condition, eventually, items, name, text, when};
use k8s_openapi::ByteString;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const VERSION: &str = "v1.34.1+k3s1";
const NEXT_VERSION: &str = "v1.34.2+k3s1";

/// What can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// The management plane, which also runs the Jobs.
    Server,
    /// The process that owns all machines; they stop with it.
    Holder,
    /// Process 1 of one machine.
    Machine,
    /// The node agent in one machine.
    Agent,
    /// The distribution in one machine.
    Distribution,
}

const VICTIMS: [Victim; 5] =
    [Victim::Server, Victim::Holder, Victim::Machine, Victim::Agent, Victim::Distribution];

#[test]
fn kills_in_provisioning_upgrade_and_scaling_converge() {
    let Some(mut life) = Life::begin(Identity::Root) else { return };

    // Provisioning: a kill at each step.
    life.moment("the first Machine appears", |life| !life.machines().is_empty());
    life.strike(Victim::Server, "");
    life.moment("a Job runs", |life| life.jobs() > 0 || !life.local_machines().is_empty());
    life.strike(Victim::Server, "");
    life.moment("a machine exists", |life| !life.local_machines().is_empty());
    life.strike(Victim::Holder, "");
    life.moment("the init node has its plan, and its agent runs", |life| {
        life.has_plan("control-plane") && life.find(Victim::Agent, "control-plane").is_some()
    });
    life.strike(Victim::Agent, "control-plane");
    life.moment("the init node's distribution runs", |life| {
        life.find(Victim::Distribution, "control-plane").is_some()
    });
    life.strike(Victim::Machine, "control-plane");
    life.moment("a worker has its plan", |life| life.has_plan("worker"));
    life.strike(Victim::Server, "");
    life.strike(Victim::Agent, "worker");
    life.moment("a worker's distribution runs", |life| life.find(Victim::Distribution, "worker").is_some());
    life.strike(Victim::Distribution, "worker");
    let made = life.converged(VERSION, 2);

    // Upgrade: no machine is replaced.
    life.person.patch_cluster(&json!({"spec": {"kubernetesVersion": NEXT_VERSION}}));
    life.strike(Victim::Server, "");
    life.moment("the init node is being upgraded", |life| life.plan_names(NEXT_VERSION, "control-plane"));
    life.strike(Victim::Agent, "control-plane");
    life.moment("a worker is being upgraded", |life| life.plan_names(NEXT_VERSION, "worker"));
    life.strike(Victim::Machine, "worker");
    life.strike(Victim::Server, "");
    assert_eq!(life.converged(NEXT_VERSION, 2), made, "an upgrade replaced something");

    // Scale up: no machine is created twice.
    life.scale_workers(4);
    life.moment("new Machines appear", |life| life.machines().len() > 3);
    life.strike(Victim::Server, "");
    life.moment("a new machine exists", |life| life.local_machines().len() > 3);
    life.strike(Victim::Holder, "");
    let grown = life.converged(NEXT_VERSION, 4);
    assert!(made.iter().all(|(name, uid)| grown.get(name) == Some(uid)), "{made:?} became {grown:?}");

    // Scale down: no machine is left behind.
    life.scale_workers(1);
    life.moment("a Machine is being deleted", Life::a_machine_is_deleting);
    life.strike(Victim::Server, "");
    life.converged(NEXT_VERSION, 1);

    // Removal: nothing is left. A quickstart would create the demo cluster again, a server does not.
    life.role = "server";
    life.person.kubectl(&["delete", "clusters.provisioning.cattle.io", "demo", "--wait=false"]).ok();
    life.moment("a Machine is being deleted", Life::a_machine_is_deleting);
    life.strike(Victim::Server, "");
    life.moment("removed everything", |life| {
        let answer = life.person.kubectl(&["get", "clusters.provisioning.cattle.io,machines", "-o", "name"]);
        answer.code == 0 && answer.out.is_empty() && life.local_machines().is_empty()
    });
    life.end();
}

#[test]
fn random_kills_converge() {
    let fresh = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let mut seed = number("DROVER_CRASH_SEED").unwrap_or_else(fresh);
    for _ in 0..number("DROVER_CRASH_ROUNDS").unwrap_or(1) {
        eprintln!("DROVER_CRASH_SEED={seed}");
        let Some(mut life) = Life::begin(Identity::User) else { return };
        let mut dice = Dice(seed);
        life.strike_at_random(&mut dice, 5);
        let made = life.converged(VERSION, 2);
        life.person.patch_cluster(&json!({"spec": {"kubernetesVersion": NEXT_VERSION}}));
        life.strike_at_random(&mut dice, 3);
        assert_eq!(life.converged(NEXT_VERSION, 2), made, "an upgrade replaced something");
        life.scale_workers(3);
        life.strike_at_random(&mut dice, 2);
        life.converged(NEXT_VERSION, 3);
        life.end();
        seed = seed.wrapping_add(1);
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// A user whose quickstart is killed repeatedly.
struct Life {
    person: Person,
    server: Child,
    /// The command that is killed and restarted.
    role: &'static str,
    begun: Instant,
}

impl Life {
    fn begin(identity: Identity) -> Option<Self> {
        if std::process::Command::new("kubectl").args(["version", "--client"]).output().is_err() {
            eprintln!("\n*** SKIPPED: needs kubectl ***\n");
            return None;
        }
        let person = Person::new(identity)?;
        let role = "quickstart";
        let server = start(&person, role);
        Some(Self { person, server, role, begun: Instant::now() })
    }

    fn log(&self, text: &str) {
        eprintln!("{:6.1}s  {text}", self.begun.elapsed().as_secs_f32());
    }

    /// Waits for the moment of the next kill.
    #[track_caller]
    fn moment(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        eventually(|| when(reached(self), what));
        self.log(what);
    }

    /// Kills a process once it exists, and restarts the server if it does not run.
    #[track_caller]
    fn strike(&mut self, victim: Victim, pool: &str) {
        let pid = eventually(|| {
            let pid = self.find(victim, pool).ok_or_else(|| format!("no {victim:?} {pool}"))?;
            kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(|error| error.to_string()).map(|()| pid)
        });
        self.log(&format!("kill -9 {victim:?} {pool} ({pid})"));
        if victim == Victim::Server {
            self.server.wait().unwrap();
            self.server = start(&self.person, self.role);
        }
    }

    fn strike_at_random(&mut self, dice: &mut Dice, times: usize) {
        for _ in 0..times {
            // Any point in time is as good as another, so there is no condition.
            std::thread::sleep(Duration::from_millis(dice.below(4000)));
            let all = VICTIMS.iter().flat_map(|victim| [(*victim, "control-plane"), (*victim, "worker")]);
            let mut there: Vec<_> =
                all.filter_map(|(victim, pool)| Some((self.find(victim, pool)?, victim, pool))).collect();
            there.dedup_by_key(|(pid, _, _)| *pid);
            let (_, victim, pool) = there[dice.below(there.len() as u64) as usize];
            self.strike(victim, pool);
        }
    }

    fn find(&self, victim: Victim, pool: &str) -> Option<i32> {
        let data_dir = self.person.data_dir.to_str()?;
        let inside = |process: &Process, words: &str| {
            process.machine(&self.person).is_some_and(|machine| machine.starts_with(&format!("demo-{pool}-")))
                && process.words.contains(words)
        };
        let found = processes().into_iter().find(|process| match victim {
            Victim::Server => process.pid == self.server.id() as i32,
            Victim::Holder => process.words.contains(&format!("machine-holder --data-dir {data_dir}")),
            Victim::Machine => inside(process, "drover machine-init"),
            Victim::Agent => inside(process, "rancher-system-agent sentinel"),
            Victim::Distribution => inside(process, "sim k3s --release"),
        });
        found.map(|process| process.pid)
    }

    /// A list from the management plane; empty while it does not answer.
    fn list(&self, kind: &str) -> Vec<Value> {
        let answer = self.person.kubectl(&["get", kind, "-o", "json"]);
        items(&serde_json::from_str(&answer.out).unwrap_or_default())
    }

    fn machines(&self) -> Vec<Value> {
        self.list("machines.cluster.x-k8s.io")
    }

    fn a_machine_is_deleting(&self) -> bool {
        self.machines().iter().any(|machine| !machine["metadata"]["deletionTimestamp"].is_null())
    }

    fn jobs(&self) -> usize {
        self.list("jobs").len()
    }

    fn local_machines(&self) -> Vec<String> {
        let dir = fs::read_dir(self.person.data_dir.join("local/machines"));
        dir.into_iter().flatten().flatten().map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    fn plans(&self, pool: &str) -> Vec<String> {
        let secrets = self.list("secrets").into_iter();
        let of_pool = secrets.filter(|secret| {
            secret["type"] == "rke.cattle.io/machine-plan"
                && name(secret).starts_with(&format!("demo-{pool}-"))
        });
        let plan = |secret: Value| serde_json::from_value::<ByteString>(secret["data"]["plan"].clone()).ok();
        of_pool.filter_map(plan).map(|plan| String::from_utf8(plan.0).unwrap()).collect()
    }

    fn has_plan(&self, pool: &str) -> bool {
        self.plans(pool).iter().any(|plan| plan.contains("system-agent-installer"))
    }

    fn plan_names(&self, version: &str, pool: &str) -> bool {
        let image = format!("system-agent-installer-k3s:{}", version.replace('+', "-"));
        self.plans(pool).iter().any(|plan| plan.contains(&image))
    }

    #[track_caller]
    fn scale_workers(&self, quantity: i32) {
        let patch =
            json!([{"op": "replace", "path": "/spec/rkeConfig/machinePools/1/quantity", "value": quantity}]);
        let words = ["patch", "clusters.provisioning.cattle.io", "demo", "--type", "json", "-p"];
        eventually(|| {
            let answer = self.person.kubectl(&[words.as_slice(), &[patch.to_string().as_str()]].concat());
            when(answer.code == 0, answer.err)
        });
    }

    /// Waits for the expected end state, and returns the Machines' names and uids.
    #[track_caller]
    fn converged(&self, version: &str, workers: usize) -> BTreeMap<String, String> {
        eventually(|| self.is_converged(version, workers));
        self.log(&format!("converged: {version}, {workers} workers"));
        self.machines().iter().map(|machine| (name(machine), text(machine, "/metadata/uid"))).collect()
    }

    fn is_converged(&self, version: &str, workers: usize) -> Result<(), String> {
        let seen = |what: &str, is: String| Err(format!("{what}: {is}"));
        let cluster = self.list("clusters.provisioning.cattle.io").pop().unwrap_or_default();
        if condition(&cluster, "Ready") != "True"
            || cluster["status"]["observedGeneration"] != cluster["metadata"]["generation"]
        {
            return seen("Cluster", cluster["status"]["conditions"].to_string());
        }
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        let machines = self.machines();
        let wanted = sorted(machines.iter().map(name).collect());
        if machines.len() != workers + 1 {
            return seen("Machines", format!("{wanted:?}"));
        }
        for machine in &machines {
            if text(machine, "/status/phase") != "Running" || condition(machine, "Ready") != "True" {
                return seen(&name(machine), machine["status"]["conditions"].to_string());
            }
        }
        for kind in ["localmachines.rke-machine.cattle.io", "rkebootstraps.rke.cattle.io"] {
            let owned = sorted(self.list(kind).iter().map(name).collect());
            if owned != wanted {
                return seen(kind, format!("{owned:?}, Machines {wanted:?}"));
            }
        }
        if sorted(self.local_machines()) != wanted {
            return seen("local machines", format!("{:?}, Machines {wanted:?}", self.local_machines()));
        }
        let kubeconfig = self.person.data_dir.join("clusters/demo.kubeconfig");
        let answer = self.person.kubectl_with(&kubeconfig, &["get", "nodes", "-o", "json"]);
        let nodes = items(&serde_json::from_str(&answer.out).unwrap_or_default());
        let named = sorted(machines.iter().map(|machine| text(machine, "/status/nodeRef/name")).collect());
        if sorted(nodes.iter().map(name).collect()) != named {
            return seen(
                "Nodes",
                format!("{:?}, Machines have {named:?} {}", nodes.iter().map(name), answer.err),
            );
        }
        for node in &nodes {
            let kubelet = text(node, "/status/nodeInfo/kubeletVersion");
            if condition(node, "Ready") != "True" || kubelet != version {
                return seen(&name(node), format!("{kubelet} {}", node["status"]["conditions"]));
            }
        }
        Ok(())
    }

    /// Deletes everything and checks that nothing is left.
    #[track_caller]
    fn end(mut self) {
        if self.role == "server" {
            kill(Pid::from_raw(self.server.id() as i32), Signal::SIGTERM).unwrap();
            self.server.wait().unwrap();
        }
        self.person.drover(&["quickstart", "--delete"]).ok();
        self.server.wait().unwrap();
        eventually(|| when(self.person.processes().is_empty(), self.person.processes()));
        assert_eq!(self.person.mounts(), Vec::<String>::new());
        assert!(!self.person.data_dir.exists());
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = self.person.home().join("quickstart.out");
            eprintln!("--- quickstart\n{}", fs::read_to_string(path).unwrap_or_default());
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn start(person: &Person, role: &str) -> Child {
    let out = person.home().join("quickstart.out");
    let out = fs::OpenOptions::new().create(true).append(true).open(out).unwrap();
    let mut command = person.command(person.binary());
    command.args([role, "--bind", "127.0.0.1:0"]).stdin(Stdio::null());
    command.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap()
}
