//! Bad input and trouble: each gives a clear error that names the field or the fix, and loses nothing.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::{Answer, Identity, Person, condition, eventually, items, name, run, text, when};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const GOOD: &str = "v1.34.1+k3s1";

fn has_kubectl() -> bool {
    let there = Command::new("kubectl").args(["version", "--client"]).output().is_ok();
    if !there {
        eprintln!("\n*** SKIPPED: needs kubectl ***\n");
    }
    there
}

/// A running `drover server`.
struct Server {
    process: Child,
    person: Person,
}

impl Server {
    fn start(person: Person) -> Self {
        let process = spawn(&person, &mut person.command(person.binary()));
        Self { process, person }
    }

    /// Ends it as a person would; its words.
    fn stop(&mut self) -> String {
        kill(Pid::from_raw(self.process.id() as i32), Signal::SIGTERM).unwrap();
        assert!(self.process.wait().unwrap().success());
        fs::read_to_string(self.person.home().join("server.out")).unwrap()
    }

    /// Where it listens.
    fn address(&self) -> String {
        let said = fs::read_to_string(self.person.home().join("server.out")).unwrap();
        said.split_once("https://").unwrap().1.split_whitespace().next().unwrap().to_owned()
    }

    /// `kubectl apply` of a document.
    fn apply(&self, document: &str) -> Answer {
        let file = self.person.write("document.yaml", document);
        self.person.kubectl(&["apply", "-f", &file])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `drover server` on a free port, once it answers.
fn spawn(person: &Person, command: &mut Command) -> Child {
    let path = person.home().join("server.out");
    let out = fs::File::create(&path).unwrap();
    command.args(["server", "--bind", "127.0.0.1:0"]).stdin(Stdio::null());
    let mut process = command.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap();
    eventually(|| {
        let said = fs::read_to_string(&path).unwrap();
        assert!(process.try_wait().unwrap().is_none(), "drover server ended: {said}");
        when(said.contains("drover is ready"), said)
    });
    process
}

/// One sentence on stderr with the cause, nothing on stdout.
#[track_caller]
fn one_sentence(answer: Answer, parts: &[&str]) {
    let (words, out) = (answer.words.clone(), answer.out.clone());
    let said = answer.refused();
    assert_eq!(out, "", "{words}");
    assert!(said.starts_with("drover: ") && said.trim_end().lines().count() == 1, "{words}: {said}");
    for part in parts {
        assert!(said.contains(part), "{words} says {said:?} and not {part:?}");
    }
}

fn pool(name: &str, roles: &[&str], config: Option<&str>) -> Value {
    let mut pool = json!({"name": name, "quantity": 1});
    roles.iter().for_each(|role| pool[*role] = json!(true));
    if let Some(config) = config {
        pool["machineConfigRef"] = json!({"kind": "LocalConfig", "name": config});
    }
    pool
}

fn with(mut pool: Value, field: &str, value: Value) -> Value {
    pool[field] = value;
    pool
}

fn cluster(name: &str, version: &str, pools: &[Value]) -> Value {
    json!({
        "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
        "metadata": {"name": name, "namespace": "fleet-default"},
        "spec": {"kubernetesVersion": version, "rkeConfig": {"machinePools": pools}},
    })
}

fn config(name: &str) -> Value {
    json!({
        "apiVersion": "rke-machine-config.cattle.io/v1", "kind": "LocalConfig",
        "metadata": {"name": name, "namespace": "fleet-default"},
    })
}

const ALL: [&str; 3] = ["etcdRole", "controlPlaneRole", "workerRole"];

#[test]
fn bad_clusters_are_refused_or_say_what_is_wrong() {
    if !has_kubectl() {
        return;
    }
    let Some(person) = Person::new(Identity::User) else { return };
    let server = Server::start(person);
    // The kind is made at run time; a config belongs to one cluster.
    for name in ["known", "version", "role", "config", "label", "taint"] {
        eventually(|| {
            let answer = server.apply(&config(name).to_string());
            when(answer.code == 0, answer.err)
        });
    }
    let all = |config: &str| pool("all", &ALL, Some(config));
    let two = |second: Value| cluster("bad", GOOD, &[all("known"), second]);

    // What the schema can judge is never stored.
    let refused = [
        (two(pool("all", &["workerRole"], Some("known"))), "spec.rkeConfig.machinePools[1]: Duplicate value"),
        (two(pool("more", &ALL, None)), "spec.rkeConfig.machinePools[1].machineConfigRef: Required value"),
        (
            two({
                let mut pool = pool("more", &ALL, Some("known"));
                pool["quantity"] = json!("many");
                pool
            }),
            "spec.rkeConfig.machinePools[1].quantity",
        ),
        (
            two({
                let mut pool = pool("more", &ALL, Some("known"));
                pool["workerRol"] = json!(true);
                pool
            }),
            "unknown field \"spec.rkeConfig.machinePools[1].workerRol\"",
        ),
        (cluster("Bad_Name", GOOD, &[all("known")]), "metadata.name: Invalid value: \"Bad_Name\""),
    ];
    for (document, expected) in refused {
        let said = server.apply(&document.to_string()).refused();
        assert!(said.contains(expected), "{said}");
    }
    let said = server.apply("kind: [Cluster").refused();
    assert!(said.contains("error parsing"), "{said}");
    let garbage = server.person.write("garbage.json", "{\"kind\": ");
    let path = "/apis/provisioning.cattle.io/v1/namespaces/fleet-default/clusters";
    let said = server.person.kubectl(&["create", "--raw", path, "-f", &garbage]).refused();
    assert!(said.contains("BadRequest"), "{said}");
    let clusters = server.person.get(&["clusters.provisioning.cattle.io"]);
    assert_eq!(items(&clusters).len(), 0, "{clusters}");

    // What only the controllers can judge is in the conditions, and goes when the mistake is mended.
    let told = [
        (
            cluster("version", "v1.99.0+k3s1", &[all("version")]),
            "set spec.kubernetesVersion to one of v1.34.1+k3s1",
        ),
        (
            cluster("role", GOOD, &[all("role"), pool("idle", &[], Some("role"))]),
            "spec.rkeConfig.machinePools[1] (idle): at least one of etcdRole, controlPlaneRole, workerRole",
        ),
        (
            cluster("config", GOOD, &[pool("all", &ALL, Some("none"))]),
            "LocalConfig fleet-default/none does not exist",
        ),
        (
            cluster("label", GOOD, &[with(all("label"), "labels", json!({"kubernetes.io/hostname": "c"}))]),
            "machinePools[0] (all): label kubernetes.io/hostname is the Node's own",
        ),
        (
            cluster(
                "taint",
                GOOD,
                &[with(all("taint"), "taints", json!([{"key": "k", "effect": "Banana"}]))],
            ),
            "machinePools[0] (all): taint k: effect \"Banana\" must be one of NoSchedule",
        ),
    ];
    for (document, expected) in &told {
        server.apply(&document.to_string()).ok();
        eventually(|| {
            let cluster = server.person.get(&["clusters.provisioning.cattle.io", &name(document)]);
            when(
                condition(&cluster, "Ready") != "True" && message(&cluster).contains(expected),
                message(&cluster),
            )
        });
        // The command line shows the same sentence.
        assert!(server.person.drover(&["get", "clusters"]).ok().contains(expected));
    }
    for (document, expected) in &told {
        let mended = cluster(&name(document), GOOD, &[all(&name(document))]);
        server.apply(&mended.to_string()).ok();
        eventually(|| {
            let cluster = server.person.get(&["clusters.provisioning.cattle.io", &name(document)]);
            let moved = cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"];
            when(moved && !message(&cluster).contains(expected), message(&cluster))
        });
    }
    server.person.kubectl(&["delete", "clusters.provisioning.cattle.io", "--all", "--timeout=120s"]).ok();
    eventually(|| {
        let left = server.person.drover(&["machine", "ls", "-q"]).ok();
        when(left.is_empty(), left)
    });
}

fn message(cluster: &Value) -> String {
    let conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().find(|c| c["type"] == "Ready").map(|c| text(c, "/message")).unwrap_or_default()
}

#[test]
fn commands_fail_with_one_sentence() {
    let Some(person) = Person::new(Identity::User) else { return };
    let nobody = ["there is no kubeconfig at", "--data-dir"];
    one_sentence(person.drover(&["get", "clusters"]), &nobody);
    one_sentence(person.drover(&["get", "kubeconfig", "demo"]), &nobody);
    one_sentence(person.drover(&["describe", "cluster", "demo"]), &nobody);
    let version = ["--kubernetes-version \"v9\" is not known", GOOD];
    one_sentence(person.quickstart(&["--kubernetes-version", "v9"]), &version);
    assert!(!person.data_dir.exists(), "a refused command made the data directory");
    let file = person.write("file", "");
    one_sentence(person.quickstart(&["--data-dir", &file]), &[&file]);
    one_sentence(person.drover(&["server", "--data-dir", "/proc/none"]), &["/proc/none"]);

    let mut server = Server::start(person);
    let no_cluster = ["there is no cluster nosuch in namespace fleet-default"];
    let no_machine = ["machine \"nosuch\" not found"];
    let cases: [(&[&str], &[&str]); 10] = [
        (&["get", "kubeconfig", "nosuch"], &no_cluster),
        (&["get", "registration-command", "nosuch", "--worker"], &no_cluster),
        (&["get", "registration-command", "nosuch"], &["--worker"]),
        (&["describe", "cluster", "nosuch"], &no_cluster),
        (&["machine", "start", "nosuch"], &no_machine),
        (&["machine", "stop", "nosuch"], &no_machine),
        (&["machine", "ssh", "nosuch", "true"], &no_machine),
        (&["machine", "inspect", "nosuch"], &no_machine),
        (&["machine", "create", "--driver", "nosuch", "m"], &["there is no driver \"nosuch\""]),
        (&["machine", "create", "--driver", "local", "--local-nosuch", "1", "m"], &["--local-nosuch"]),
    ];
    for (words, parts) in cases {
        one_sentence(server.person.drover(words), parts);
    }
    server.stop();
    one_sentence(server.person.drover(&["get", "clusters"]), &["the management plane at", "does not answer"]);
}

#[test]
fn a_wrong_bearer_token_is_unauthorized() {
    if !has_kubectl() {
        return;
    }
    let Some(person) = Person::new(Identity::User) else { return };
    let server = Server::start(person);
    let address = server.address();
    let url = format!("--server=https://{address}");
    let nothing = PathBuf::from(server.person.write("empty.yaml", ""));
    let credential = [url.as_str(), "--insecure-skip-tls-verify", "--token=kubeconfig-user-x:wrong"];
    for words in [&["get", "namespaces"][..], &["create", "namespace", "x"], &["auth", "whoami"]] {
        let said = server.person.kubectl_with(&nothing, &[&credential, words].concat()).refused();
        assert!(said.contains("Unauthorized") || said.contains("must be logged in"), "{said}");
    }
    assert_ne!(server.person.kubectl(&["get", "namespace", "x"]).code, 0);
}

#[test]
fn a_port_or_data_directory_in_use_and_a_newer_one() {
    let Some(person) = Person::new(Identity::User) else { return };
    let mut server = Server::start(person);
    let address = server.address();
    let other = server.person.home().join("other");
    let other = other.to_str().unwrap();
    for command in ["server", "quickstart"] {
        one_sentence(
            server.person.drover(&[command, "--data-dir", other, "--bind", &address]),
            &[&format!("{address} is in use by another program"), "--bind ADDR:PORT"],
        );
        one_sentence(
            server.person.drover(&[command, "--bind", "127.0.0.1:0"]),
            &["is in use by another server", "choose another directory"],
        );
    }
    server.person.drover(&["quickstart", "--delete", "--data-dir", other]).ok();
    server.stop();

    // The schema version of an SQLite file stands in its header.
    let store = server.person.data_dir.join("db/store.db");
    let version = |value: u32| {
        let file = fs::OpenOptions::new().read(true).write(true).open(&store).unwrap();
        let mut before = [0; 4];
        file.read_exact_at(&mut before, 60).unwrap();
        file.write_all_at(&value.to_be_bytes(), 60).unwrap();
        u32::from_be_bytes(before)
    };
    let known = version(999);
    let content = fs::read(&store).unwrap();
    for command in ["server", "quickstart"] {
        one_sentence(
            server.person.drover(&[command, "--bind", "127.0.0.1:0"]),
            &["has schema version 999", &format!("knows up to {known}"), "use the newer release"],
        );
    }
    assert!(fs::read(&store).unwrap() == content, "a store of a newer version was changed");
    version(known);
    server.process = spawn(&server.person, &mut server.person.command(server.person.binary()));
}

/// A small file system that only this test sees.
struct Island {
    keeper: Child,
}

impl Island {
    fn new(mount: &str) -> Self {
        let script = format!("{mount} && echo made && exec sleep infinity");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).stdout(Stdio::piped());
        let mut keeper = command.spawn().unwrap();
        let mut made = [0; 5];
        std::io::Read::read_exact(&mut keeper.stdout.take().unwrap(), &mut made).unwrap();
        Self { keeper }
    }

    /// A program on the island.
    fn command(&self, person: &Person, program: &str) -> Command {
        let mut command = person.command("nsenter");
        command.args(["--mount", "--target", &self.keeper.id().to_string(), "--", program]);
        command
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

#[test]
fn a_full_disk_is_named_and_nothing_is_lost() {
    if !has_kubectl() {
        return;
    }
    let Some(person) = Person::new(Identity::Root) else { return };
    let (drover, data) =
        (person.binary().to_str().unwrap().to_owned(), person.data_dir.display().to_string());
    // Local machines keep a copy of the program; a store needs little beside it.
    let size = fs::metadata(&drover).unwrap().len() / (1 << 20) + 32;
    fs::create_dir(&person.data_dir).unwrap();
    let island = Island::new(&format!("mount -t tmpfs -o size={size}m none {data}"));
    let kubectl = |words: &[&str]| {
        let mut command = island.command(&person, "kubectl");
        command.args(["--kubeconfig", &format!("{data}/kubeconfig.yaml")]).args(words);
        run(&mut command, &format!("kubectl {}", words.join(" ")))
    };
    let fill = |name: &str| {
        let mut command = island.command(&person, "dd");
        command.args(["if=/dev/zero", &format!("of={data}/{name}"), "bs=16k"]);
        assert!(run(&mut command, "dd").err.contains("No space left"));
    };
    let remove = |name: &str| {
        let mut command = island.command(&person, "rm");
        run(command.arg(format!("{data}/{name}")), "rm").ok();
    };
    let big = person.write("big", &"x".repeat(500_000));

    let mut server = spawn(&person, &mut island.command(&person, &drover));
    kubectl(&["create", "configmap", "before", "--from-literal=a=b"]).ok();
    fill("filler");
    let said = kubectl(&["create", "configmap", "during", "--from-file", &big]).refused();
    assert!(said.contains("the change was not stored") && said.contains("disk is full"), "{said}");
    assert_ne!(
        kubectl(&["get", "--raw", "/readyz"]).code,
        0,
        "a server that cannot write calls itself ready"
    );
    assert_eq!(kubectl(&["get", "configmap", "before", "-o", "jsonpath={.data.a}"]).ok(), "b");
    assert_ne!(kubectl(&["get", "configmap", "during"]).code, 0, "what was refused is there");
    let log = fs::read_to_string(person.home().join("server.out")).unwrap();
    assert!(log.contains("no space left for the store"), "{log}");

    // Space again: it goes on by itself.
    remove("filler");
    eventually(|| {
        let answer = kubectl(&["create", "configmap", "after", "--from-file", &big]);
        when(answer.code == 0, answer.err)
    });
    eventually(|| {
        let answer = kubectl(&["get", "--raw", "/readyz"]);
        when(answer.code == 0, answer.err)
    });

    // Killed while the disk is full, and started while it is: a sentence. With space again: everything is there.
    fill("filler");
    server.kill().unwrap();
    server.wait().unwrap();
    let mut command = island.command(&person, &drover);
    let answer = run(command.args(["server", "--bind", "127.0.0.1:0"]), "drover server");
    assert!(answer.refused().to_lowercase().contains("no space left"));
    remove("filler");
    let mut server = spawn(&person, &mut island.command(&person, &drover));
    for name in ["before", "after"] {
        kubectl(&["get", "configmap", name]).ok();
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let mut command = island.command(&person, &drover);
    run(command.args(["machine", "ls", "-q"]), "drover machine ls").ok();
    let holder = person.processes();
    for process in holder.iter().filter(|words| words.contains("machine-holder")) {
        let pid = process.split(' ').next().unwrap().parse().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
}

#[test]
fn user_namespaces_that_are_forbidden_are_named() {
    let Some(person) = Person::new(Identity::User) else { return };
    // In a user namespace whose limit is 0, without any capability, nobody can make another.
    let script = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -all --inh-caps -all \
                  \"$0\" quickstart --bind 127.0.0.1:0";
    let mut command = person.command("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script]).arg(person.binary());
    let answer = run(&mut command, "drover quickstart");
    one_sentence(answer, &["user.max_user_namespaces is 0: set it to 10000", "sysctl -w"]);
    eventually(|| when(person.processes().is_empty(), person.processes()));
}

#[test]
fn a_data_directory_that_cannot_hold_machines_is_named() {
    let Some(person) = Person::new(Identity::Root) else { return };
    let data = person.data_dir.display().to_string();
    for (mount, cause) in [
        ("mkdir u w l && mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w", "itself an overlay"),
        ("mount -t tmpfs -o noexec none", "mounted noexec"),
    ] {
        let script = format!("{mount} \"$1\" && exec \"$0\" quickstart --bind 127.0.0.1:0");
        fs::create_dir(&data).unwrap();
        let mut command = person.command("unshare");
        command.args(["--mount", "sh", "-c", &script]).arg(person.binary()).arg(&data);
        one_sentence(run(&mut command, "drover quickstart"), &[cause, "choose another with --data-dir"]);
        eventually(|| when(person.processes().is_empty(), person.processes()));
        fs::remove_dir(&data).unwrap();
    }
}

#[test]
fn a_wrong_registration_token_or_ca_checksum_installs_nothing() {
    if !has_kubectl() {
        return;
    }
    let Some(person) = Person::new(Identity::User) else { return };
    let server = Server::start(person);
    let person = &server.person;
    server.apply(&cluster("own", GOOD, &[]).to_string()).ok();
    person.drover(&["machine", "create", "--driver", "local", "bare"]).ok();
    let command = eventually(|| {
        let answer = person.drover(&["get", "registration-command", "own", "--worker"]);
        if answer.code == 0 { Ok(answer.out) } else { Err(answer.err) }
    });
    let command = command.trim().replace("sudo sh", "CATTLE_AGENT_RETRY_PAUSE=0 sh");
    let word_after =
        |flag: &str| command.split_once(flag).unwrap().1.split_whitespace().next().unwrap().to_owned();
    let installed =
        "ls -d /usr/local/bin/rancher-system-agent* /etc/rancher/agent /etc/systemd/system/rancher-*";
    for (flag, wrong, said) in [
        ("--token ", "x".repeat(54), "refuses the token"),
        ("--ca-checksum ", "0".repeat(64), "has checksum"),
    ] {
        let bad = command.replace(&word_after(flag), &wrong);
        let answer = person.in_machine("bare", &[&bad]);
        let text = format!("{}{}", answer.out, answer.err);
        assert_ne!(answer.code, 0, "{text}");
        assert!(text.contains(said) && text.contains("nothing was installed"), "{text}");
        let left = person.in_machine("bare", &[installed]);
        assert_eq!(left.out, "", "{flag}");
    }
    assert_eq!(items(&person.get(&["machines.cluster.x-k8s.io"])).len(), 0);
    // The same command without the mistake works.
    person.in_machine("bare", &[&command]).ok();
    eventually(|| {
        let machines = items(&person.get(&["machines.cluster.x-k8s.io"]));
        when(machines.len() == 1, machines)
    });
    person.kubectl(&["delete", "clusters.provisioning.cattle.io", "--all", "--timeout=120s"]).ok();
}
