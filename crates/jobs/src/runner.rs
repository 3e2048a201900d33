//! The controller: keeps one child per unfinished Job, and records the result of each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drover_runtime::cache::Selector;
use drover_runtime::error::{is_already_exists, is_not_found};
use drover_runtime::{Cache, Caches, Clock, Controller, Error, Expectations, Next, ObjectKey, Reconciler};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus, Secret,
    ServiceAccount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::{self, InheritedLock, Outcome};
use crate::decide::{self, Action, Attempts, REASON_INTERRUPTED};
use crate::metrics::Metrics;
use crate::slots::Slots;

const JOB_NAME: &str = "batch.kubernetes.io/job-name";
const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
const TOKEN_SECONDS: i64 = 24 * 3600;

/// Configuration of a runner.
#[derive(Clone)]
pub struct RunnerOptions {
    /// Only Jobs with this label are run.
    pub label: &'static str,
    /// Only Jobs with this `managedBy` are run. The Job controller of a cluster ignores them.
    pub managed_by: &'static str,
    /// The program, and its arguments before those of the container.
    pub program: PathBuf,
    pub leading_args: Vec<String>,
    /// Additional environment variables of every child.
    pub env: Vec<(String, String)>,
    /// The directory for locks, logs and files of attempts. It is private to this user.
    pub dir: PathBuf,
    /// The address and CA of the API for children.
    pub api_url: String,
    pub ca_pem: String,
    /// The maximum number of children, which can change at any time.
    pub limit: watch::Receiver<usize>,
    pub metrics: Metrics,
}

impl RunnerOptions {
    fn lock(&self, job: &ObjectKey) -> PathBuf {
        self.dir.join("locks").join(format!("{}_{}", job.namespace, job.name))
    }

    fn log(&self, job: &ObjectKey) -> PathBuf {
        self.dir.join("logs").join(format!("{}_{}.log", job.namespace, job.name))
    }
}

/// Runs Jobs until it is stopped. Children continue to run if it is dropped without being stopped.
pub struct Runner {
    options: RunnerOptions,
    client: Client,
    jobs: Cache<Job>,
    pods: Cache<Pod>,
    clock: Arc<dyn Clock>,
    slots: Arc<Mutex<Slots<Child>>>,
    /// Records that the cache may not contain yet. Without them a successful attempt could be repeated.
    recorded: Arc<Expectations>,
    tasks: TaskTracker,
    /// Cancelled when the server, and with it the API for children, is shutting down.
    stopping: CancellationToken,
    /// Wakes the controller when a child has exited, or when a queued Job can start.
    wake: mpsc::UnboundedSender<ObjectKey>,
}

struct Child {
    job_uid: String,
    stop: CancellationToken,
}

impl Runner {
    /// Runs until `stop` is cancelled. Children continue to run, as pods would.
    pub async fn run(
        options: RunnerOptions,
        caches: &Caches,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let (mut limit, metrics) = (options.limit.clone(), options.metrics.clone());
        let slots = Slots::new(*limit.borrow_and_update());
        metrics.set_counts((0, 0), slots.limit());
        let slots = Arc::new(Mutex::new(slots));
        let labelled = Selector::labels(options.label);
        let (jobs, pods) = (caches.select::<Job>(labelled.clone()), caches.select::<Pod>(labelled));
        pods.index_by_label(JOB_NAME);
        let runner = Self {
            options,
            client: caches.client().clone(),
            jobs: jobs.clone(),
            pods: pods.clone(),
            clock,
            slots: slots.clone(),
            recorded: Arc::default(),
            tasks: TaskTracker::new(),
            stopping: stop.clone(),
            wake,
        };
        pods.synced().await;
        let controller = Controller::new(runner).reconciles(&jobs).watches(&pods, |change| {
            let pod = change.either();
            pod.and_then(|pod| pod.labels().get(JOB_NAME).map(|name| change.key.sibling(name)))
        });
        let queue = controller.queue();
        let wake = async {
            while let Some(key) = woken.recv().await {
                queue.add(key);
            }
        };
        let raised = controller.queue();
        let follow = async {
            while limit.changed().await.is_ok() {
                let mut slots = slots.lock();
                slots.set_limit(*limit.borrow_and_update());
                metrics.set_counts(slots.count(), slots.limit());
                slots.due().into_iter().for_each(|key| raised.add(key));
            }
            // The sender was dropped, so the limit does not change any more.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = controller.run(stop) => {}
            () = wake => {}
            () = follow => {}
        }
    }

    fn is_ours(&self, job: &Job) -> bool {
        let managed_by = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
        job.labels().contains_key(self.options.label) && managed_by == Some(self.options.managed_by)
    }

    fn running(&self, key: &ObjectKey) -> bool {
        self.slots.lock().running(key).is_some()
    }

    /// Stops the child of a Job that must not run, and removes the Job from the queue.
    fn stop_child(&self, key: &ObjectKey) {
        self.leave_queue(key);
        let slots = self.slots.lock();
        if let Some(child) = slots.running(key) {
            child.stop.cancel();
        }
    }

    /// Starts a child. Returns `false` if the maximum number of Jobs is running; the Job is woken when it can start.
    fn start_child(&self, key: &ObjectKey, job: &Arc<Job>) -> bool {
        let uid = job.uid().unwrap_or_default();
        let stop = CancellationToken::new();
        {
            let mut slots = self.slots.lock();
            if slots.running(key).is_some() {
                return true;
            }
            let started = slots.start(key, Child { job_uid: uid, stop: stop.clone() });
            self.options.metrics.set_counts(slots.count(), slots.limit());
            if !started {
                return false;
            }
        }
        let run = AttemptRun {
            options: self.options.clone(),
            client: self.client.clone(),
            clock: self.clock.clone(),
            job: job.clone(),
            key: key.clone(),
            recorded: self.recorded.clone(),
            stopping: self.stopping.clone(),
        };
        let (slots, wake, metrics) = (self.slots.clone(), self.wake.clone(), self.options.metrics.clone());
        let key = key.clone();
        self.tasks.spawn(async move {
            if let Err(error) = run.run(stop).await {
                tracing::warn!(job = %key, error = error.chain(), "failed to run an attempt");
                // Limits the rate of retries, for example if the disk is full.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let mut slots = slots.lock();
            slots.end(&key);
            metrics.set_counts(slots.count(), slots.limit());
            wake_due(&slots, &wake);
            // The controller may have ended already.
            let _ = wake.send(key);
        });
        true
    }

    /// Removes a finished or suspended Job from the queue.
    fn leave_queue(&self, key: &ObjectKey) {
        let mut slots = self.slots.lock();
        if slots.leave(key) {
            self.options.metrics.set_counts(slots.count(), slots.limit());
            wake_due(&slots, &self.wake);
        }
    }

    async fn write_status(&self, key: &ObjectKey, job: &Job, status: &JobStatus) -> Result<(), Error> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut patch = json!({"metadata": {"uid": job.uid()}, "status": status});
        if status.active.is_none() {
            // A merge patch does not change fields that it does not contain.
            patch["status"]["active"] = serde_json::Value::Null;
        }
        if status.conditions.is_none() {
            patch["status"]["conditions"] = serde_json::Value::Null;
        }
        let patched = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match patched {
            Err(error) if is_not_found(&error) => Ok(()),
            other => other.map(|_| ()).map_err(Error::api(format!("write status of Job {key}"))),
        }
    }
}

impl Reconciler for Runner {
    const NAME: &'static str = "jobs";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let job = self.jobs.get(&key).filter(|job| self.is_ours(job));
        let Some(job) = job else {
            self.stop_child(&key);
            if !self.running(&key) {
                self.recorded.forget(&key);
                InheritedLock::discard(&self.options.lock(&key));
                let _ = std::fs::remove_file(self.options.log(&key));
            }
            return Ok(Next::EVENT);
        };
        let stale =
            self.slots.lock().running(&key).is_some_and(|child| Some(&child.job_uid) != job.uid().as_ref());
        if stale {
            // Another Job with the same name: the child of the previous one must end first.
            self.stop_child(&key);
            return Ok(Next::EVENT);
        }
        if !self.running(&key) {
            self.recorded.met(&*job, &self.pods).await?;
        }
        let pods: Vec<_> = self
            .pods
            .by_label(JOB_NAME, &key.namespace, &key.name)
            .into_iter()
            .filter(|pod| pod.labels().get(CONTROLLER_UID) == job.uid().as_ref())
            .collect();
        let now = self.clock.now();
        let attempts = Attempts::of(&pods, self.running(&key));
        match decide::decide(&job, attempts, &last_message(&pods), now) {
            Action::None => self.leave_queue(&key),
            Action::Start => {
                let wait = last_failure(&pods)
                    .map_or(Duration::ZERO, |at| remaining(decide::backoff(attempts.failed), at, now));
                if !wait.is_zero() {
                    return Ok(Next::after(wait));
                }
                if !self.start_child(&key, &job)
                    && let Some(status) = decide::queued(&job, attempts, now)
                {
                    self.write_status(&key, &job, &status).await?;
                }
            }
            Action::Stop => self.stop_child(&key),
            Action::Finish(status) | Action::Status(status) => {
                self.leave_queue(&key);
                self.write_status(&key, &job, &status).await?;
            }
        }
        let left = decide::time_left(&job, now).filter(|_| !decide::is_finished(&job));
        Ok(left.map_or(Next::EVENT, |left| Next::after(left.max(Duration::from_millis(200)))))
    }
}

/// Wakes the queued Jobs that can start.
fn wake_due(slots: &Slots<Child>, wake: &mpsc::UnboundedSender<ObjectKey>) {
    // The controller may have ended already.
    slots.due().into_iter().for_each(|key| _ = wake.send(key));
}

fn remaining(wait: Duration, since: Timestamp, now: Timestamp) -> Duration {
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    wait.saturating_sub(passed)
}

fn terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()?.terminated.as_ref()
}

fn last_failed(pods: &[Arc<Pod>]) -> Option<&ContainerStateTerminated> {
    let failed = pods.iter().filter_map(|pod| terminated(pod)).filter(|t| t.exit_code != 0);
    failed.max_by_key(|t| t.finished_at.as_ref().map(|time| time.0))
}

fn last_message(pods: &[Arc<Pod>]) -> String {
    last_failed(pods).and_then(|t| t.message.clone()).unwrap_or_default()
}

fn last_failure(pods: &[Arc<Pod>]) -> Option<Timestamp> {
    last_failed(pods)?.finished_at.as_ref().map(|time| time.0)
}

/// The inputs of one attempt.
struct AttemptRun {
    options: RunnerOptions,
    client: Client,
    clock: Arc<dyn Clock>,
    job: Arc<Job>,
    key: ObjectKey,
    recorded: Arc<Expectations>,
    stopping: CancellationToken,
}

impl AttemptRun {
    async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let doing = || format!("run Job {}", self.key);
        private_dir(&self.options.dir.join("locks")).map_err(Error::other(doing()))?;
        let Some(lock) = InheritedLock::acquire(&self.options.lock(&self.key), &stop)
            .await
            .map_err(Error::other(doing()))?
        else {
            return Ok(());
        };
        // With this lock, no child of an earlier runner is running, so its open records are interrupted attempts.
        self.close_interrupted().await?;
        let pod = self.record_start().await?;
        let outcome = self.execute(&pod, lock, stop).await;
        let dir = self.attempt_dir(&pod);
        let _ = std::fs::remove_dir_all(&dir);
        let failed = outcome.as_ref().map_or(true, |outcome| outcome.exit_code != 0);
        if failed && self.stopping.is_cancelled() {
            // Without the API no attempt can succeed, so this is not a failure of the Job. Its record counts as
            // interrupted, like one whose runner was killed.
            return Ok(());
        }
        match outcome {
            Ok(outcome) => {
                self.options.metrics.ended(match (outcome.stopped, outcome.exit_code) {
                    (true, _) => "stopped",
                    (false, 0) => "succeeded",
                    (false, _) => "failed",
                });
                self.record_end(&pod, &outcome).await
            }
            Err(error) => {
                self.options.metrics.ended("failed");
                let outcome = Outcome { exit_code: 128, message: error.chain(), stopped: false };
                self.record_end(&pod, &outcome).await?;
                Err(error)
            }
        }
    }

    async fn execute(
        &self,
        pod: &str,
        lock: InheritedLock,
        stop: CancellationToken,
    ) -> Result<Outcome, Error> {
        let doing = || format!("run Job {}", self.key);
        let dir = self.attempt_dir(pod);
        private_dir(&dir).map_err(Error::other(doing()))?;
        let spec = self.job.spec.as_ref().and_then(|spec| spec.template.spec.clone());
        let spec = spec.ok_or_else(|| Error::Invalid(format!("Job {} has no pod template", self.key)))?;
        let secrets = self.secrets(&spec).await?;
        let secret = |name: &str| secrets.get(name).cloned();
        let mut invocation = attempt::prepare(&spec, &secret, &dir).map_err(Error::other(doing()))?;
        if let Some(account) = &spec.service_account_name {
            let kubeconfig = dir.join("kubeconfig");
            let text = self.kubeconfig(account).await?;
            attempt::write_private(&kubeconfig, text.as_bytes(), 0o600).map_err(Error::other(doing()))?;
            invocation.env.insert("KUBECONFIG".into(), kubeconfig.display().to_string());
        }
        invocation.env.extend(self.options.env.iter().cloned());
        invocation.args.splice(0..0, self.options.leading_args.iter().cloned());
        private_dir(&self.options.dir.join("logs")).map_err(Error::other(doing()))?;
        let log = self.options.log(&self.key);
        attempt::run(&self.options.program, &invocation, lock, &log, stop)
            .await
            .map_err(Error::other(doing()))
    }

    fn attempt_dir(&self, pod: &str) -> PathBuf {
        self.options.dir.join("attempts").join(format!("{}_{pod}", self.key.namespace))
    }

    /// The Secrets of the pod. Like a kubelet, the runner reads them when the pod starts.
    async fn secrets(&self, spec: &PodSpec) -> Result<BTreeMap<String, Secret>, Error> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.key.namespace);
        let mut found = BTreeMap::new();
        for name in attempt::secret_names(spec) {
            let secret = api.get_opt(name).await.map_err(Error::api(format!("get Secret {name}")))?;
            found.extend(secret.map(|secret| (name.to_owned(), secret)));
        }
        Ok(found)
    }

    async fn kubeconfig(&self, account: &str) -> Result<String, Error> {
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.key.namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let token = api
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .map_err(Error::api(format!("create a token of ServiceAccount {account}")))?;
        let token = token.status.map(|status| status.token).unwrap_or_default();
        // Serialized in base64.
        let ca = ByteString(self.options.ca_pem.clone().into_bytes());
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "job",
            "clusters": [{"name": "job", "cluster": {
                "server": self.options.api_url, "certificate-authority-data": ca,
            }}],
            "users": [{"name": "job", "user": {"token": token}}],
            "contexts": [{"name": "job", "context": {
                "cluster": "job", "user": "job", "namespace": self.key.namespace,
            }}],
        });
        // JSON is YAML.
        Ok(config.to_string())
    }

    async fn record_start(&self) -> Result<String, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.key.namespace);
        let template = self.job.spec.as_ref().map(|spec| &spec.template);
        let mut labels =
            template.and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.clone()).unwrap_or_default();
        let uid = self.job.uid().unwrap_or_default();
        labels
            .extend([(JOB_NAME.to_owned(), self.key.name.clone()), (CONTROLLER_UID.to_owned(), uid.clone())]);
        labels.insert("job-name".into(), self.key.name.clone());
        // Our cache finds pods by it, whether the template has it or not.
        if let Some(value) = self.job.labels().get(self.options.label) {
            labels.entry(self.options.label.to_owned()).or_insert_with(|| value.clone());
        }
        let owner = OwnerReference {
            api_version: "batch/v1".into(),
            kind: "Job".into(),
            name: self.key.name.clone(),
            uid,
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        // The Pod is only a record. With the runner's name as scheduler, no scheduler assigns it to a node.
        let spec = template
            .and_then(|t| t.spec.clone())
            .map(|spec| PodSpec { scheduler_name: Some(self.options.managed_by.to_owned()), ..spec });
        // Together with the suffix that the API appends, this is a valid label value.
        let prefix: String = self.key.name.chars().take(57).collect();
        let pod = Pod {
            metadata: ObjectMeta {
                generate_name: Some(format!("{prefix}-")),
                namespace: Some(self.key.namespace.clone()),
                labels: Some(labels),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec,
            ..Pod::default()
        };
        let created = loop {
            match api.create(&PostParams::default(), &pod).await {
                Ok(created) => break created,
                // The generated name is in use: the next one differs.
                Err(error) if is_already_exists(&error) => continue,
                Err(error) => {
                    return Err(Error::api(format!("record an attempt of Job {}", self.key))(error));
                }
            }
        };
        let name = created.name_any();
        let status =
            PodStatus { phase: Some("Running".into()), start_time: Some(self.now()), ..PodStatus::default() };
        self.write_pod_status(&api, &name, &status).await?;
        Ok(name)
    }

    async fn record_end(&self, pod: &str, outcome: &Outcome) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.key.namespace);
        let succeeded = outcome.exit_code == 0 && !outcome.stopped;
        let container =
            self.job.spec.iter().filter_map(|s| s.template.spec.as_ref()).flat_map(|s| &s.containers).next();
        let terminated = ContainerStateTerminated {
            exit_code: outcome.exit_code,
            finished_at: Some(self.now()),
            message: Some(outcome.message.clone()).filter(|message| !message.is_empty()),
            reason: Some(if succeeded { "Completed" } else { "Error" }.into()),
            ..ContainerStateTerminated::default()
        };
        let state = ContainerState { terminated: Some(terminated), ..ContainerState::default() };
        let container = ContainerStatus {
            name: container.map(|c| c.name.clone()).unwrap_or_default(),
            image: container.and_then(|c| c.image.clone()).unwrap_or_default(),
            state: Some(state),
            ..ContainerStatus::default()
        };
        let status = PodStatus {
            phase: Some(if succeeded { "Succeeded" } else { "Failed" }.into()),
            reason: outcome.stopped.then(|| "Stopped".to_owned()),
            container_statuses: Some(vec![container]),
            ..PodStatus::default()
        };
        self.write_pod_status(&api, pod, &status).await
    }

    /// Closes records that an earlier runner left open when it was killed.
    async fn close_interrupted(&self) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.key.namespace);
        let of_job = kube::api::ListParams::default().labels(&format!("{JOB_NAME}={}", self.key.name));
        let pods =
            api.list(&of_job).await.map_err(Error::api(format!("list attempts of Job {}", self.key)))?;
        for pod in pods.items {
            if matches!(
                pod.status.as_ref().and_then(|s| s.phase.as_deref()),
                Some("Running" | "Pending") | None
            ) {
                let status = PodStatus {
                    phase: Some("Failed".into()),
                    reason: Some(REASON_INTERRUPTED.into()),
                    message: Some("the manager was restarted; the attempt will be repeated".into()),
                    ..PodStatus::default()
                };
                self.write_pod_status(&api, &pod.name_any(), &status).await?;
            }
        }
        Ok(())
    }

    async fn write_pod_status(&self, api: &Api<Pod>, name: &str, status: &PodStatus) -> Result<(), Error> {
        let patch = Patch::Merge(json!({"status": status}));
        match api.patch_status(name, &PatchParams::default(), &patch).await {
            // Deleted with its Job.
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(Error::api(format!("write status of Pod {name}"))(error)),
            Ok(written) => {
                self.recorded.expect(&*self.job, written.resource_version());
                Ok(())
            }
        }
    }

    fn now(&self) -> Time {
        Time(drover_runtime::conditions::whole_seconds(self.clock.now()))
    }
}

fn private_dir(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
