//! Runs the Jobs of the driver: `create` creates a machine and saves it in the state secret, `rm` removes it. The
//! results in the API are the same as those of the Job runner and `drover machine`.

use std::sync::Arc;

use drover_api::labels::rke::INFRA_MACHINE_NAME;
use drover_machine::archive::{self, CONTAINER_STORE};
use drover_machine::host::{Host, HostOptions};
use drover_machine::store::EXTRACTED_CONFIG;
use drover_runtime::cache::Selector;
use drover_runtime::error::{is_conflict, is_not_found};
use drover_runtime::{Cache, Caches, Controller, Error, Next, ObjectKey, Reconciler};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PodSpec, Secret};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::bootstrap::Registration;
use crate::datacenter::Datacenter;

/// How many Jobs run at once.
const CONCURRENCY: usize = 64;

/// Selects the Jobs to run.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// The name of the driver.
    pub driver: String,
    /// `spec.managedBy` of its Jobs.
    pub managed_by: String,
}

/// Runs the Jobs of a driver.
pub struct Runner {
    options: RunnerOptions,
    client: Client,
    jobs: Cache<Job>,
    datacenter: Arc<Datacenter>,
}

impl Runner {
    /// Runs Jobs until `stop` is cancelled.
    pub async fn run(
        options: RunnerOptions,
        caches: &Caches,
        datacenter: Arc<Datacenter>,
        stop: CancellationToken,
    ) {
        let jobs = caches.select::<Job>(Selector::labels(INFRA_MACHINE_NAME));
        let runner = Self { options, client: caches.client().clone(), jobs: jobs.clone(), datacenter };
        Controller::new(runner).concurrency(CONCURRENCY).reconciles(&jobs).run(stop).await;
    }

    fn is_ours(&self, job: &Job) -> bool {
        let managed_by = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
        job.labels().contains_key(INFRA_MACHINE_NAME)
            && managed_by == Some(self.options.managed_by.as_str())
            && job.metadata.deletion_timestamp.is_none()
    }

    async fn execute(&self, key: &ObjectKey, pod: &PodSpec) -> Result<(), Error> {
        let args = pod.containers.first().and_then(|container| container.args.as_deref()).unwrap_or_default();
        let flag = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
        let missing = |what: &str| Error::Invalid(format!("Job {key} has no {what}"));
        let name = args.last().ok_or_else(|| missing("arguments"))?;
        if !args.iter().any(|arg| arg == "create") {
            let removed = self.datacenter.remove(name).await;
            return removed.map_err(Error::other(format!("remove machine {name}")));
        }
        let volume =
            pod.volumes.iter().flatten().find_map(|volume| volume.secret.as_ref()?.secret_name.as_ref());
        let bootstrap = volume.ok_or_else(|| missing("volume with the install script"))?;
        let registration = self.registration(&key.sibling(bootstrap)).await?;
        let hostname = flag("--hostname-override").unwrap_or(name);
        let created = self.datacenter.create(name, hostname, registration).await;
        let address = created.map_err(Error::other(format!("create machine {name}")))?;
        let state = flag("--secret-name").ok_or_else(|| missing("--secret-name"))?;
        self.save(&key.sibling(state), name, &address.to_string()).await
    }

    async fn registration(&self, secret: &ObjectKey) -> Result<Registration, Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &secret.namespace);
        let found = secrets.get(&secret.name).await.map_err(Error::api(format!("read Secret {secret}")))?;
        let script = found.data.and_then(|mut data| data.remove("value")).unwrap_or_default();
        Registration::from_script(&String::from_utf8_lossy(&script.0))
            .map_err(|why| Error::Invalid(format!("Secret {secret}: {why}")))
    }

    /// Saves the machine in the format of `drover machine`.
    async fn save(&self, secret: &ObjectKey, name: &str, address: &str) -> Result<(), Error> {
        let mut host = Host::new(name, &self.options.driver, CONTAINER_STORE, HostOptions::default());
        for key in ["IPAddress", "PrivateIPAddress"] {
            host.config.driver.insert(key.into(), json!(address));
        }
        let doing = || format!("save machine {name} in Secret {secret}");
        let files = host.to_files().map_err(Error::other(doing()))?;
        let archive = archive::pack(CONTAINER_STORE, &[(name.to_owned(), files)].into());
        let archive = archive.map_err(Error::other(doing()))?;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &secret.namespace);
        let patch = json!({"data": {EXTRACTED_CONFIG: ByteString(archive)}});
        let saved = secrets.patch(&secret.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        saved.map(|_| ()).map_err(Error::api(doing()))
    }
}

impl Reconciler for Runner {
    const NAME: &'static str = "simulated-jobs";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(job) = self.jobs.get(&key).filter(|job| self.is_ours(job)) else { return Ok(Next::EVENT) };
        if job.status.as_ref().is_some_and(|status| status.completion_time.is_some()) {
            return Ok(Next::EVENT);
        }
        let Some(pod) = job.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()) else {
            return Ok(Next::EVENT);
        };
        self.execute(&key, pod).await?;
        complete(&self.client, &job).await?;
        Ok(Next::EVENT)
    }
}

/// Records that a Job succeeded. The patch contains the UID: while the Job ran, it may have been replaced by the Job
/// with the same name that removes the machine.
pub async fn complete(client: &Client, job: &Job) -> Result<(), Error> {
    let key = ObjectKey::of(job);
    let now = drover_runtime::conditions::whole_seconds(Timestamp::now()).to_string();
    let done = json!({"metadata": {"uid": job.uid()}, "status": {
        "completionTime": now, "startTime": now, "succeeded": 1, "conditions": [
            {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now},
            {"type": "Complete", "status": "True", "lastTransitionTime": now},
        ],
    }});
    let own: Api<Job> = Api::namespaced(client.clone(), &key.namespace);
    match own.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(done)).await {
        // The Job was deleted or replaced.
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
        other => other.map(|_| ()).map_err(Error::api(format!("write status of Job {key}"))),
    }
}
