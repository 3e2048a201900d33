//! The Job runner and its driver: a Job `create` makes a machine and notes it in the state secret, `rm` takes it away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use drover_apiserver::UserInfo;
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_machine::archive::{self, CONTAINER_STORE};
use drover_machine::host::{Host, HostOptions};
use drover_machine::store::EXTRACTED_CONFIG;
use drover_runtime::in_process_client;
use drover_testkit::objects::Objects;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::bootstrap::Order;
use crate::machine::Machine;

const LOOK: Duration = Duration::from_millis(20);

/// Where the machines are, by the names that the driver gave them.
#[derive(Default)]
pub(crate) struct Datacenter {
    machines: Mutex<BTreeMap<String, Machine>>,
    /// After how many writes a machine loses its power, each number for one time; none means never.
    power_cuts: parking_lot::Mutex<Vec<u64>>,
}

impl Datacenter {
    /// Runs Jobs until the task is ended.
    ///
    /// A machine whose power was cut is switched on again.
    pub(crate) fn run(self: &Arc<Self>, objects: Arc<Objects>) -> JoinHandle<()> {
        let datacenter = self.clone();
        tokio::spawn(async move {
            loop {
                // A manager that is just being restarted is asked again.
                if let Err(error) = datacenter.run_jobs(&objects).await {
                    tracing::debug!(%error, "Jobs not run");
                }
                datacenter.restore_power().await;
                tokio::time::sleep(LOOK).await;
            }
        })
    }

    /// From now on machines lose their power after so many writes, in this order whenever one is switched on.
    pub(crate) fn cut_power(&self, mut after_writes: Vec<u64>) {
        after_writes.reverse();
        *self.power_cuts.lock() = after_writes;
    }

    /// How many of the power cuts are still to come.
    pub(crate) fn power_cuts_left(&self) -> usize {
        self.power_cuts.lock().len()
    }

    async fn restore_power(&self) {
        for machine in self.machines.lock().await.values_mut().filter(|machine| machine.host.is_dead()) {
            machine.power_off().await;
            self.switch_on(machine).await;
        }
    }

    async fn switch_on(&self, machine: &mut Machine) {
        machine.power_on().await;
        if let Some(writes) = self.power_cuts.lock().pop() {
            machine.host.crash_after_writes(writes);
        }
    }

    pub(crate) async fn names(&self) -> BTreeSet<String> {
        self.machines.lock().await.keys().cloned().collect()
    }

    /// A person's own server, on which they run the command of the registration token.
    pub(crate) async fn bring(&self, name: &str, order: Order) {
        let mut machine = Machine::new(name, order);
        self.switch_on(&mut machine).await;
        self.machines.lock().await.insert(name.to_owned(), machine);
    }

    /// Cuts the power of all machines when a test is over.
    pub(crate) async fn close(&self) {
        let mut machines = std::mem::take(&mut *self.machines.lock().await);
        for machine in machines.values_mut() {
            machine.power_off().await;
        }
    }

    /// Acts on a machine.
    pub(crate) async fn with<T>(&self, name: &str, act: impl AsyncFnOnce(&mut Machine) -> T) -> T {
        let mut machines = self.machines.lock().await;
        act(machines.get_mut(name).unwrap()).await
    }

    async fn run_jobs(&self, objects: &Objects) -> Result<(), kube::Error> {
        let jobs: Api<Job> = Api::all(objects.client());
        for job in jobs.list(&ListParams::default()).await?.items {
            // The list may be old by now: a Job that was taken away is not begun.
            let own: Api<Job> = Api::namespaced(objects.client(), &job.namespace().unwrap());
            let there = own.get_opt(&job.name_any()).await?.filter(|now| now.uid() == job.uid());
            let Some(job) = there.filter(|job| job.metadata.deletion_timestamp.is_none()) else { continue };
            if job.status.as_ref().is_none_or(|status| status.completion_time.is_none()) {
                self.run_job(objects, &job).await?;
            }
        }
        Ok(())
    }

    async fn run_job(&self, objects: &Objects, job: &Job) -> Result<(), kube::Error> {
        let namespace = job.namespace().unwrap();
        let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        let args = pod.containers[0].args.as_ref().unwrap();
        let flag = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
        let name = args.last().unwrap();
        let secrets: Api<Secret> = Api::namespaced(objects.client(), &namespace);
        if args.iter().any(|arg| arg == "create") {
            let volume = &pod.volumes.as_ref().unwrap()[0];
            let bootstrap = volume.secret.as_ref().unwrap().secret_name.as_ref().unwrap();
            let script = secrets.get(bootstrap).await?.data.unwrap()["value"].0.clone();
            let hostname = flag("--hostname-override").unwrap();
            let store =
                self.create(name, hostname, Order::of_script(std::str::from_utf8(&script).unwrap())).await;
            let state = flag("--secret-name").unwrap();
            let mut secret = secrets.get(state).await?;
            secret.data.get_or_insert_default().insert(EXTRACTED_CONFIG.into(), ByteString(store));
            secrets.replace(state, &PostParams::default(), &secret).await?;
        } else {
            self.remove(name).await;
        }
        complete(objects, job).await
    }

    /// The machine, made or adopted, as the store keeps it.
    async fn create(&self, name: &str, hostname: &str, order: Order) -> Vec<u8> {
        let mut machines = self.machines.lock().await;
        if !machines.contains_key(name) {
            let mut machine = Machine::new(hostname, order);
            self.switch_on(&mut machine).await;
            machines.insert(name.to_owned(), machine);
        }
        let machine = &machines[name];
        let mut host = Host::new(name, "local", CONTAINER_STORE, HostOptions::default());
        for key in ["IPAddress", "PrivateIPAddress"] {
            host.config.driver.insert(key.into(), json!(machine.address.to_string()));
        }
        archive::pack(CONTAINER_STORE, &[(name.to_owned(), host.to_files().unwrap())].into()).unwrap()
    }

    async fn remove(&self, name: &str) {
        let machine = self.machines.lock().await.remove(name);
        if let Some(mut machine) = machine {
            machine.power_off().await;
        }
    }
}

/// Notes that a Job succeeded. This one and no other: while it ran, the Job that removes the machine may have taken its
/// place and its name.
async fn complete(objects: &Objects, job: &Job) -> Result<(), kube::Error> {
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap().to_string();
    let done = json!({"metadata": {"uid": job.uid()}, "status": {
        "completionTime": now, "startTime": now, "succeeded": 1, "conditions": [
            {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now},
            {"type": "Complete", "status": "True", "lastTransitionTime": now},
        ],
    }});
    let own: Api<Job> = Api::namespaced(objects.client(), &job.namespace().unwrap());
    own.patch_status(&job.name_any(), &PatchParams::default(), &Patch::Merge(done)).await.map(|_| ())
}

#[tokio::test]
async fn a_job_that_took_the_place_of_another_is_not_called_done_for_it() {
    let pki = Pki::in_memory(jiff::Timestamp::now()).unwrap();
    let server = Embedded::start(EmbeddedOptions::in_memory(Arc::new(pki))).await.unwrap();
    let client = in_process_client(server.service(), UserInfo::system_masters("test"));
    let objects = Objects::new(move || client.clone());
    let jobs: Api<Job> = Api::namespaced(objects.client(), "default");
    let job = json!({"metadata": {"name": "j"}, "spec": {"managedBy": "drover.io/job-runner", "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}],
    }}}});
    let job: Job = serde_json::from_value(job).unwrap();
    let create = jobs.create(&PostParams::default(), &job).await.unwrap();
    objects.delete("batch/v1", "Job", "default", "j").await;
    let remove = jobs.create(&PostParams::default(), &job).await.unwrap();
    complete(&objects, &create).await.unwrap_err();
    assert!(jobs.get("j").await.unwrap().status.is_none_or(|status| status.completion_time.is_none()));
    complete(&objects, &remove).await.unwrap();
    assert!(jobs.get("j").await.unwrap().status.unwrap().completion_time.is_some());
}
