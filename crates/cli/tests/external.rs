//! `drover server --kubeconfig`: the same controllers on a real kube-apiserver with etcd and kube-controller-manager, driven
//! by the built binary and the real `kubectl`.
//!
//! One test is one life of a cluster, in order, because starting everything takes longer than all that follows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::{Answer, Identity, Person, condition, eventually, items, name, text, when};
use drover_testkit::kubernetes::{self, ADMIN, ALICE, Kubernetes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const VERSION: &str = "v1.34.1+k3s1";
const CLUSTER: &str = "clusters.provisioning.cattle.io/demo";

#[test]
fn a_cluster_lives_on_an_external_kubernetes_api() {
    let Some(person) = Person::new(identity()) else { return };
    let Some(kubernetes) = Kubernetes::start() else { return };
    person.drover(&["sim", "images"]).ok();
    let mut site = Site::begin(person, kubernetes);
    site.a_user_without_rights_is_refused();
    site.makes_a_cluster();
    site.users_keep_their_identity();
    site.a_second_server_waits();
    site.scales_through_a_kill();
    site.deletes();
    site.ends();
}

fn identity() -> Identity {
    if nix::unistd::geteuid().is_root() { Identity::Root } else { Identity::User }
}

/// A server that uses an external Kubernetes API.
struct Site {
    /// Dropped first: objects are not deleted while a server is running.
    server: Server,
    person: Person,
    kubernetes: Kubernetes,
    /// The kubeconfigs of the manager and of an administrator at Drover's port.
    kubeconfig: String,
}

/// A running `drover server`; killed when it is dropped.
struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    fn start(person: &Person, kubeconfig: &str, data_dir: &Path) -> Self {
        let log = person.home().join(format!("{}.log", data_dir.file_name().unwrap().display()));
        let out = File::options().create(true).append(true).open(&log).unwrap();
        let child = person
            .command(person.binary())
            .args(["server", "--bind", "127.0.0.1:0", "--kubeconfig", kubeconfig, "--data-dir"])
            .arg(data_dir)
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its address, once it is ready: the last one in its log, which is appended after a restart.
    fn url(&mut self, starts: usize) -> String {
        eventually(|| {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {ended:?}\n{}", self.output());
            let output = self.output();
            let mut ready = output.lines().filter_map(|line| line.strip_prefix("drover is ready at "));
            ready.nth(starts - 1).map(str::to_owned).ok_or("not ready")
        })
    }

    fn signal(&mut self, signal: Signal) -> std::process::ExitStatus {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let output = self.output();
            let lines: Vec<&str> = output.lines().collect();
            eprintln!(
                "--- {} ---\n{}",
                self.log.display(),
                lines[lines.len().saturating_sub(40)..].join("\n")
            );
        }
    }
}

/// A `kubectl get --watch` that ends with the test.
struct Watch(Child);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Site {
    fn begin(person: Person, kubernetes: Kubernetes) -> Self {
        let kubeconfig = person.write("kubernetes.json", &kubernetes.kubeconfig(ADMIN));
        let mut server = Server::start(&person, &kubeconfig, &person.data_dir);
        server.url(1);
        Self { person, kubernetes, kubeconfig, server }
    }

    /// `kubectl` against the API itself, without Drover.
    fn kubectl(&self, words: &[&str]) -> Answer {
        let all: Vec<&str> = ["-n", "fleet-default"].iter().chain(words).copied().collect();
        self.person.kubectl_with(Path::new(&self.kubeconfig), &all)
    }

    #[track_caller]
    fn get(&self, words: &[&str]) -> Value {
        let all: Vec<&str> = ["get", "-o", "json"].iter().chain(words).copied().collect();
        serde_json::from_str(&self.kubectl(&all).ok()).unwrap()
    }

    /// A kubeconfig for Drover's own port.
    fn at_the_front(&mut self, name: &str, starts: usize, token: &str) -> String {
        let url = self.server.url(starts);
        let ca = std::fs::read_to_string(self.person.data_dir.join("tls/ca.crt")).unwrap();
        self.person.write(&format!("{name}-at-the-front.json"), &kubernetes::kubeconfig(&url, &ca, token))
    }

    fn with(&self, kubeconfig: &str, words: &[&str]) -> Answer {
        self.person.kubectl_with(Path::new(kubeconfig), words)
    }

    fn machines(&self) -> Vec<Value> {
        items(&self.get(&["machines"]))
    }

    /// Every Machine has a Ready Node and a local machine, and there are no others.
    fn workers_are(&self, count: usize) -> Result<(), String> {
        let workers = |names: Vec<String>| -> BTreeSet<String> {
            names.into_iter().filter(|name| name.contains("worker")).collect()
        };
        let machines = workers(self.machines().iter().map(name).collect());
        let kubeconfig = self.downstream();
        let listed = self.with(&kubeconfig, &["get", "nodes", "-o", "json"]);
        // After a restart, the tunnel and the new address take a moment.
        let nodes = serde_json::from_str(&listed.out).map(|list| items(&list)).map_err(|_| listed.err)?;
        let ready = nodes.iter().filter(|node| condition(node, "Ready") == "True").map(name).collect();
        let ready = workers(ready);
        let real = self.person.drover(&["machine", "ls", "-q"]).ok();
        let real = workers(real.lines().map(str::to_owned).collect());
        let seen = format!("Machines {machines:?}, nodes {ready:?}, machines {real:?}");
        when(machines.len() == count && machines == ready && machines == real, seen)
    }

    /// The cluster's own kubeconfig, which goes through Drover.
    fn downstream(&self) -> String {
        let kubeconfig = ["get", "kubeconfig", "demo", "--kubeconfig", &self.kubeconfig];
        let text = self.person.drover(&kubeconfig).ok();
        self.person.write("demo.kubeconfig", &text)
    }

    fn settled(&self) {
        eventually(|| {
            let cluster = self.get(&[CLUSTER]);
            let seen = cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"];
            let good =
                ["Ready", "Updated", "Provisioned"].iter().all(|type_| condition(&cluster, type_) == "True");
            when(seen && good, format!("{:#}", cluster["status"]))
        });
    }

    /// Permissions are checked before anything is written.
    fn a_user_without_rights_is_refused(&self) {
        let kubeconfig = self.person.write("alice.json", &self.kubernetes.kubeconfig(ALICE));
        let elsewhere = self.person.home().join("elsewhere");
        let words = ["server", "--bind", "127.0.0.1:0", "--kubeconfig", &kubeconfig, "--data-dir"];
        let refused =
            self.person.drover(&[words.as_slice(), &[elsewhere.to_str().unwrap()]].concat()).refused();
        assert!(refused.contains("lacks permissions") && refused.contains("cluster-admin"), "{refused}");
        assert!(refused.contains("customresourcedefinitions.apiextensions.k8s.io"), "{refused}");
        let refused =
            self.person.drover(&["server", "--bind", "127.0.0.1:0", "--kubeconfig", &kubeconfig]).refused();
        assert!(refused.contains("in use by another server"), "{refused}");
        assert!(!self.person.data_dir.join("kubeconfig.yaml").exists(), "no administrator was created");
    }

    fn makes_a_cluster(&self) {
        let config = |name: &str| {
            json!({
                "apiVersion": "rke-machine-config.cattle.io/v1", "kind": "LocalConfig",
                "metadata": {"name": name, "namespace": "fleet-default"},
            })
        };
        // Without a quantity the pool has one machine; on an external API no admission sets the default.
        let pools = json!([
            {"name": "control-plane", "etcdRole": true, "controlPlaneRole": true,
             "machineConfigRef": {"kind": "LocalConfig", "name": "demo-control-plane"}},
            {"name": "worker", "quantity": 1, "workerRole": true,
             "machineConfigRef": {"kind": "LocalConfig", "name": "demo-worker"}},
        ]);
        let cluster = json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
            "metadata": {"name": "demo", "namespace": "fleet-default"},
            "spec": {"kubernetesVersion": VERSION, "rkeConfig": {"machinePools": pools}},
        });
        let list = json!({
            "apiVersion": "v1", "kind": "List",
            "items": [config("demo-control-plane"), config("demo-worker"), cluster],
        });
        let path = self.person.write("demo.json", &list.to_string());
        // The driver's kinds are generated at run time.
        eventually(|| {
            let applied = self.kubectl(&["apply", "-f", &path]);
            when(applied.code == 0, applied.err)
        });
        // Jobs are run by Drover's runner, not by the Job controller that is also there.
        eventually(|| {
            let jobs = items(&self.get(&["jobs"]));
            let ours = jobs.iter().all(|job| text(job, "/spec/managedBy") == "drover.io/job-runner");
            when(!jobs.is_empty() && ours, jobs)
        });
        self.settled();
        eventually(|| self.workers_are(1));
    }

    /// At Drover's port users keep their identity, and no request uses the manager's.
    fn users_keep_their_identity(&mut self) {
        let admin = self.at_the_front("admin", 1, ADMIN);
        let alice = self.at_the_front("alice", 1, ALICE);
        let nobody = self.at_the_front("nobody", 1, "no-such-token");
        assert!(self.with(&alice, &["auth", "whoami"]).ok().contains("alice"));
        assert!(self.with(&admin, &["auth", "whoami"]).ok().contains("system:masters"));
        assert!(self.with(&admin, &["get", "secrets", "-A", "-o", "name"]).ok().contains("demo-kubeconfig"));
        let refused = self.with(&alice, &["get", "secrets", "-A"]).refused();
        assert!(refused.contains("\"alice\" cannot list resource \"secrets\""), "{refused}");
        self.with(&nobody, &["get", "secrets", "-A"]).refused();
        assert!(self.with(&admin, &["api-resources"]).ok().contains("machinedeployments"));
        assert!(
            self.with(&admin, &["explain", "clusters.provisioning.cattle.io.spec"])
                .ok()
                .contains("rkeConfig")
        );
        self.a_watch_streams(&admin);
        let url = self.server.url(1);
        let asked = |path: &str| {
            let mut curl = self.person.command("curl");
            let words = format!("{url}{path}");
            common::run(curl.args(["-sk", &words]), &format!("curl {path}")).ok()
        };
        let refused = asked("/api/v1/secrets");
        assert!(refused.contains("cannot forward client certificates"), "{refused}");
        assert_eq!((asked("/livez"), asked("/readyz")), ("ok".into(), "ok".into()));
        let refused = asked("/metrics");
        assert!(refused.contains("Unauthorized"), "{refused}");
        let metrics = self.with(&admin, &["get", "--raw", "/metrics"]).ok();
        assert!(metrics.contains("leader_election_master_status"), "{metrics}");
        self.with(&alice, &["get", "--raw", "/metrics"]).refused();

        // Access to the cluster itself requires all permissions on its object.
        let id = text(&self.get(&[CLUSTER]), "/status/clusterName");
        let nodes = format!("/k8s/clusters/{id}/api/v1/nodes");
        assert!(self.with(&admin, &["get", "--raw", &nodes]).ok().contains("demo-control-plane"));
        let refused = self.with(&alice, &["get", "--raw", &nodes]).refused();
        assert!(refused.contains("cannot reach cluster"), "{refused}");
        self.with(&nobody, &["get", "--raw", &nodes]).refused();
        let words = [
            "create",
            "clusterrole",
            "owner-of-demo",
            "--verb=*",
            "--resource=clusters.management.cattle.io",
            "--resource-name",
            &id,
        ];
        self.with(&admin, &words).ok();
        self.with(
            &admin,
            &["create", "clusterrolebinding", "alice", "--clusterrole=owner-of-demo", "--user=alice"],
        )
        .ok();
        eventually(|| {
            let answer = self.with(&alice, &["get", "--raw", &nodes]);
            when(answer.out.contains("demo-control-plane"), answer.err)
        });
    }

    /// A watch delivers changes after it has started.
    fn a_watch_streams(&self, kubeconfig: &str) {
        let words = ["get", "configmaps", "-n", "default", "-w", "-o", "name", "--request-timeout=60s"];
        let child = self
            .person
            .command("kubectl")
            .args(["--kubeconfig", kubeconfig])
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut watch = Watch(child);
        let mut lines = std::io::BufReader::new(watch.0.stdout.take().unwrap()).lines();
        let mut next = |wanted: &str| lines.by_ref().map_while(Result::ok).any(|line| line.contains(wanted));
        assert!(next("kube-root-ca.crt"), "existing objects");
        self.with(kubeconfig, &["create", "configmap", "seen", "-n", "default"]).ok();
        assert!(next("configmap/seen"), "what comes");
    }

    /// Of two servers one is the leader; the other reports which one, and is not ready.
    fn a_second_server_waits(&self) {
        let data_dir = self.person.home().join("second");
        let second = Server::start(&self.person, &self.kubeconfig, &data_dir);
        eventually(|| when(second.output().contains("waiting: server "), second.output()));
        assert!(!second.output().contains("drover is ready"), "{}", second.output());
        let authority = |dir: &Path| std::fs::read_to_string(dir.join("tls/ca.crt")).unwrap();
        assert_eq!(authority(&data_dir), authority(&self.person.data_dir), "agents trust either");
        assert!(!data_dir.join("local").exists(), "it changed nothing on this host");
    }

    /// `kill -9` while scaling: the next server on the same data directory becomes the leader at once and continues.
    fn scales_through_a_kill(&mut self) {
        self.kubectl(&["scale", "machinedeployment", "demo-worker", "--replicas=2"]).ok();
        eventually(|| when(self.machines().len() == 3, self.machines().iter().map(name).collect::<Vec<_>>()));
        self.server.signal(Signal::SIGKILL);
        self.server = Server::start(&self.person, &self.kubeconfig, &self.person.data_dir);
        self.server.url(2);
        eventually(|| self.workers_are(2));
        let admin = self.at_the_front("admin", 2, ADMIN);
        let words = ["-n", "fleet-default", "scale", "machinedeployment", "demo-worker", "--replicas=1"];
        self.with(&admin, &words).ok();
        eventually(|| self.workers_are(1));
        self.settled();
    }

    /// Everything is deleted, with the help of kube-controller-manager's garbage collector.
    fn deletes(&self) {
        self.kubectl(&["delete", CLUSTER, "--timeout=180s"]).ok();
        let kinds = "clusters.cluster.x-k8s.io,machinedeployments,machinesets,machines,rkecontrolplanes,rkeclusters,\
                     rkebootstraps,rkebootstraptemplates,localmachines,localmachinetemplates,localconfigs,jobs,pods,\
                     secrets,serviceaccounts,roles,rolebindings,configmaps,clusters.management.cattle.io";
        eventually(|| {
            let left = self.kubectl(&["get", &kinds.replace(' ', ""), "-o", "name"]).ok();
            let own = ["serviceaccount/default", "configmap/kube-root-ca.crt"];
            let left: Vec<&str> = left.lines().filter(|line| !own.contains(line)).collect();
            when(left.is_empty(), format!("{left:?}"))
        });
        eventually(|| {
            let namespaces = self.kubectl(&["get", "namespaces", "-o", "name"]).ok();
            when(!namespaces.contains("c-m-"), namespaces)
        });
        assert_eq!(self.person.drover(&["machine", "ls", "-q"]).ok(), "", "machines");
    }

    /// A server that is stopped releases the Lease and leaves no process behind.
    fn ends(&mut self) {
        let status = self.server.signal(Signal::SIGTERM);
        assert!(status.success(), "{status:?}\n{}", self.server.output());
        let lease = self.get(&["lease", "drover-server", "-n", "cattle-system"]);
        assert_eq!(text(&lease, "/spec/holderIdentity"), "");
        eventually(|| when(self.person.processes().is_empty(), self.person.processes()));
    }
}

/// An unusable kubeconfig is reported in one sentence, before anything else happens.
#[test]
fn an_unusable_kubeconfig_is_reported_in_one_sentence() {
    let Some(person) = Person::new(identity()) else { return };
    let serve = |kubeconfig: &str| {
        person.drover(&["server", "--bind", "127.0.0.1:0", "--kubeconfig", kubeconfig]).refused()
    };
    let config = |context: &str, server: &str| {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": context,
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "known", "context": {"cluster": "c", "user": "u"}}],
        })
        .to_string()
    };
    let refused = serve("/nonexistent/kubeconfig");
    assert!(refused.contains("there is no kubeconfig at /nonexistent/kubeconfig"), "{refused}");
    let refused = serve(&person.write("broken.yaml", "{ not: [yaml"));
    assert!(refused.contains("broken.yaml cannot be read"), "{refused}");
    let refused = serve(&person.write("unknown.yaml", &config("other", "https://127.0.0.1:1")));
    assert!(refused.contains("has no context \"other\"") && refused.contains("use-context"), "{refused}");
    let refused = serve(&person.write("closed.yaml", &config("known", "https://127.0.0.1:1")));
    assert!(refused.contains("https://127.0.0.1:1/ does not answer"), "{refused}");
    assert!(refused.trim().lines().count() == 1, "one sentence: {refused}");
}
