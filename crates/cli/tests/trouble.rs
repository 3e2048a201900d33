//! Bad input: each gives a clear error that names the field or the fix, and nothing is lost. Problems of the host are
//! in `host.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use common::server::{Server, has_kubectl, one_sentence};
use common::{Identity, Person, condition, eventually, items, name, text, when};
use serde_json::{Value, json};

const GOOD: &str = "v1.34.1+k3s1";

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
fn invalid_clusters_are_rejected_or_explained_in_a_condition() {
    if !has_kubectl() {
        return;
    }
    let Some(person) = Person::new(Identity::User) else { return };
    let server = Server::start(person);
    // The kind is generated at run time; a config belongs to one cluster.
    for name in ["known", "version", "role", "config", "label", "taint"] {
        eventually(|| {
            let answer = server.apply(&config(name).to_string());
            when(answer.code == 0, answer.err)
        });
    }
    // Fields without an effect are stored, with a warning.
    let token = json!({
        "apiVersion": "management.cattle.io/v3", "kind": "ClusterRegistrationToken",
        "metadata": {"name": "short"},
        "spec": {"clusterName": "c-1", "gracePeriod": 30},
    });
    let answer = server.apply(&token.to_string());
    assert!(answer.code == 0 && answer.err.contains("Warning: spec.gracePeriod is stored"), "{}", answer.err);

    let all = |config: &str| pool("all", &ALL, Some(config));
    let two = |second: Value| cluster("bad", GOOD, &[all("known"), second]);

    // Input that violates the schema is never stored.
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
        let output = server.apply(&document.to_string()).refused();
        assert!(output.contains(expected), "{output}");
    }
    let output = server.apply("kind: [Cluster").refused();
    assert!(output.contains("error parsing"), "{output}");
    let garbage = server.person.write("garbage.json", "{\"kind\": ");
    let path = "/apis/provisioning.cattle.io/v1/namespaces/fleet-default/clusters";
    let output = server.person.kubectl(&["create", "--raw", path, "-f", &garbage]).refused();
    assert!(output.contains("BadRequest"), "{output}");
    let clusters = server.person.get(&["clusters.provisioning.cattle.io"]);
    assert_eq!(items(&clusters).len(), 0, "{clusters}");

    // Problems that only the controllers detect are in the conditions until they are corrected.
    let explained = [
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
    for (document, expected) in &explained {
        server.apply(&document.to_string()).ok();
        eventually(|| {
            let cluster = server.person.get(&["clusters.provisioning.cattle.io", &name(document)]);
            when(
                condition(&cluster, "Ready") != "True" && message(&cluster).contains(expected),
                message(&cluster),
            )
        });
        // The command line shows the same message.
        assert!(server.person.drover(&["get", "clusters"]).ok().contains(expected));
        let why = server.person.drover(&["why", &name(document)]);
        assert!(why.code == 1 && why.out.contains(expected), "{} {}{}", why.code, why.out, why.err);
    }
    for (document, expected) in &explained {
        let corrected = cluster(&name(document), GOOD, &[all(&name(document))]);
        server.apply(&corrected.to_string()).ok();
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
    let no_server = ["there is no kubeconfig at", "--data-dir"];
    one_sentence(person.drover(&["get", "clusters"]), &no_server);
    one_sentence(person.drover(&["get", "kubeconfig", "demo"]), &no_server);
    one_sentence(person.drover(&["describe", "cluster", "demo"]), &no_server);
    one_sentence(person.drover(&["why", "demo"]), &no_server);
    // An unreadable kubeconfig is named, but its content is not shown.
    let broken = person.write("broken.yaml", "users: [{name: u, user: {token: sekret\n");
    let answer = person.drover(&["get", "clusters", "--kubeconfig", &broken]);
    assert!(!answer.err.contains("sekret"), "{}", answer.err);
    one_sentence(answer, &[&format!("the kubeconfig {broken} cannot be read")]);
    let nowhere = person.write("nowhere.yaml", "apiVersion: v1\nkind: Config\n");
    one_sentence(
        person.drover(&["get", "clusters", "--kubeconfig", &nowhere]),
        &[&nowhere, "current-context"],
    );
    let version = ["--kubernetes-version \"v9\" is unknown", GOOD];
    one_sentence(person.quickstart(&["--kubernetes-version", "v9"]), &version);
    // Commands that only read, or are refused, create no directory and leave no process.
    assert!(person.drover(&["machine", "ls"]).ok().starts_with("no machines in "));
    assert_eq!(person.drover(&["machine", "ls", "-o", "json"]).ok(), "[]\n");
    let long = "m".repeat(80);
    for (words, code, part) in [
        (&["status", "nosuch"][..], 4, "there is no data directory"),
        (&["start", "nosuch"], 4, "there is no data directory"),
        (&["rm", "nosuch"], 4, "machine \"nosuch\" not found"),
        (&["create", "--driver", "local", &long], 3, "up to 63 letters"),
        (&["create", "--driver", "local", "--hostname-override", "a_b", "m"], 3, "invalid host name \"a_b\""),
        (&["create", "m"], 1, "--driver local"),
        (&["create", "--driver", "local"], 1, "the machine's name"),
    ] {
        let answer = person.drover(&[&["machine"], words].concat());
        assert_eq!(answer.code, code, "{words:?}: {}", answer.err);
        one_sentence(answer, &[part]);
    }
    assert!(!person.data_dir.exists(), "a refused command created the data directory");
    let other = person.write("notes", "");
    let other = Path::new(&other).parent().unwrap();
    let before = std::fs::read_dir(other).unwrap().count();
    let words = ["machine", "--data-dir", other.to_str().unwrap(), "rm", "-f", "nosuch"];
    assert!(person.drover(&words).ok().contains("nosuch"));
    assert_eq!(
        std::fs::read_dir(other).unwrap().count(),
        before,
        "a file was written into a directory of others"
    );
    assert_eq!(person.processes(), Vec::<String>::new());
    let file = person.write("file", "");
    let no_directory = [&format!("{file} cannot be used: it is a file, not a directory")[..]];
    one_sentence(person.quickstart(&["--data-dir", &file]), &no_directory);
    one_sentence(person.drover(&["server", "--data-dir", &file]), &no_directory);
    one_sentence(person.drover(&["machine", "ls", "--data-dir", &file]), &no_directory);
    one_sentence(
        person.drover(&["server", "--bind", "127.0.0.1:0", "--data-dir", "/proc/none"]),
        &["/proc/none"],
    );

    let mut server = Server::start(person);
    let no_cluster = ["cluster nosuch not found in namespace fleet-default"];
    let no_machine = ["machine \"nosuch\" not found"];
    let cases: [(&[&str], &[&str]); 14] = [
        (&["get", "cluster", "nosuch", "-o", "yaml"], &no_cluster),
        (&["get", "kubeconfig", "nosuch"], &no_cluster),
        (&["get", "registration-command", "nosuch", "--worker"], &no_cluster),
        (&["get", "registration-command", "nosuch"], &no_cluster),
        (&["describe", "cluster", "nosuch"], &no_cluster),
        (&["why", "nosuch"], &["cluster nosuch was not found in namespace fleet-default"]),
        (&["why", "machine/nosuch"], &["Machine nosuch was not found in namespace fleet-default"]),
        (&["machine", "start", "nosuch"], &no_machine),
        (&["machine", "rm", "nosuch"], &["machine \"nosuch\" not found; nothing was removed"]),
        (&["machine", "stop", "nosuch"], &no_machine),
        (&["machine", "ssh", "nosuch", "true"], &no_machine),
        (&["machine", "inspect", "nosuch"], &no_machine),
        (&["machine", "create", "--driver", "nosuch", "m"], &["unknown driver \"nosuch\""]),
        (&["machine", "create", "--driver", "local", "--local-nosuch", "1", "m"], &["--local-nosuch"]),
    ];
    for (words, parts) in cases {
        one_sentence(server.person.drover(words), parts);
    }
    // The Job passes this name, and may run twice.
    let again = server.person.drover(&["machine", "rm", "-y", "--update-config", "nosuch"]).ok();
    assert!(again.contains("machine nosuch not found"), "{again}");
    let locks = server.person.data_dir.join("machine-store/locks");
    assert_eq!(std::fs::read_dir(locks).map_or(0, |left| left.count()), 0, "a lock was left");
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
        let output = server.person.kubectl_with(&nothing, &[&credential, words].concat()).refused();
        assert!(output.contains("Unauthorized") || output.contains("must be logged in"), "{output}");
    }
    assert_ne!(server.person.kubectl(&["get", "namespace", "x"]).code, 0);
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
    let command =
        command.trim().replace(" sh -s", " env CATTLE_AGENT_RETRY_PAUSE=0 CATTLE_AGENT_REFUSALS=3 sh -s");
    let word_after =
        |flag: &str| command.split_once(flag).unwrap().1.split_whitespace().next().unwrap().to_owned();
    // Installers of other projects download the agent and its uninstaller by these names.
    for name in ["system-agent-uninstall.sh", "rancher-system-agent-amd64"] {
        let url = format!("{}/assets/{name}", word_after("--server "));
        person.in_machine("bare", &[&format!("curl -skf -o /tmp/{name} {url} && test -s /tmp/{name}")]).ok();
    }
    let installed =
        "ls -d /usr/local/bin/rancher-system-agent* /etc/rancher/agent /etc/systemd/system/rancher-*";
    for (flag, wrong, said) in [
        ("--token ", "x".repeat(54), "rejected the token"),
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
