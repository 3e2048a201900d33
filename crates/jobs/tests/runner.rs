//! The runner on an in-memory API server, with shells as children.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::http::ApiService;
use drover_apiserver::identity::UserInfo;
use drover_jobs::{Metrics, Runner, RunnerOptions};
use drover_runtime::{Caches, SystemClock, in_process_client};
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use kube::client::Body;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

const NAMESPACE: &str = "default";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_succeeds_is_run_once_and_leaves_one_record() {
    let world = World::start().await;
    let _runner = world.runner();
    let ran = world.dir.path().join("ran");
    // They exit long before the runner's cache has received their records.
    let names: Vec<String> = (0..12).map(|number| format!("job-{number}")).collect();
    for name in &names {
        world.job(name, &format!("echo {name} >> {}; echo done", ran.display()), 3).await;
    }
    for name in &names {
        world.finished(name, "Complete").await;
        let attempts = world.attempts(name).await;
        assert_eq!(attempts, [("Succeeded".to_owned(), 0, "done".to_owned())], "{name}");
    }
    let mut seen: Vec<String> = std::fs::read_to_string(ran).unwrap().lines().map(str::to_owned).collect();
    let mut wanted = names;
    seen.sort();
    wanted.sort();
    assert_eq!(seen, wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_job_is_retried_up_to_its_limit_and_its_output_is_kept() {
    let world = World::start().await;
    let _runner = world.runner();
    world.job("fails", "echo it is broken; exit 7", 1).await;
    let job = world.finished("fails", "Failed").await;
    let conditions = job.status.unwrap().conditions.unwrap();
    let message = conditions.iter().find(|c| c.type_ == "Failed").unwrap().message.clone().unwrap();
    assert!(message.contains("it is broken"), "{message}");
    let failed = ("Failed".to_owned(), 7, "it is broken".to_owned());
    assert_eq!(world.attempts("fails").await, [failed.clone(), failed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_runner_waits_for_the_child_of_a_killed_runner() {
    let world = World::start().await;
    let file = |name: &str| world.dir.path().join(name);
    let (begun, go, overlap) = (file("begun"), file("go"), file("overlap"));
    let script = format!(
        "echo x >> {begun}; mkdir {busy} || touch {overlap}; until [ -e {go} ]; do sleep 0.05; done; rmdir {busy}",
        begun = begun.display(),
        busy = file("busy").display(),
        overlap = overlap.display(),
        go = go.display(),
    );
    let first = world.runner();
    world.job("long", &script, 3).await;
    eventually("the child runs", async || begun.exists()).await;
    // Killed like a process: its tasks end, but its child continues.
    drop(first);
    let _second = world.runner();
    let lock = file("jobs/locks").join(format!("{NAMESPACE}_long"));
    eventually("the second runner waits for the lock", async || openers(&lock) > 1).await;
    assert_eq!(lines(&begun), 1, "the orphan still holds the lock");
    std::fs::write(&go, "").unwrap();
    world.finished("long", "Complete").await;
    assert!(!overlap.exists(), "two children never run at the same time");
    assert_eq!(lines(&begun), 2, "the interrupted attempt is repeated");
    let attempts = world.attempts("long").await;
    assert_eq!(attempts.iter().filter(|(phase, ..)| phase == "Succeeded").count(), 1, "{attempts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_fails_during_shutdown_is_repeated() {
    let world = World::start().await;
    let file = |name: &str| world.dir.path().join(name);
    let (begun, gone, ended) = (file("begun"), file("gone"), file("ended"));
    // The first child loses the API, the second one succeeds.
    let script = format!(
        "echo x >> {begun}; [ $(wc -l < {begun}) = 1 ] || exit 0; until [ -e {gone} ]; do sleep 0.05; done; touch {ended}; exit 1",
        begun = begun.display(),
        gone = gone.display(),
        ended = ended.display(),
    );
    let stop = CancellationToken::new();
    let first = world.runner_until(stop.clone());
    world.job("cut", &script, 0).await;
    eventually("the child is running", async || begun.exists()).await;
    stop.cancel();
    std::fs::write(&gone, "").unwrap();
    let lock = file("jobs/locks").join(format!("{NAMESPACE}_cut"));
    eventually("the child has ended", async || ended.exists() && openers(&lock) == 0).await;
    let _second = world.runner();
    world.finished("cut", "Complete").await;
    assert_eq!(lines(&begun), 2);
    drop(first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_beyond_the_limit_are_queued_and_run_later() {
    let world = World::start().await;
    world.limit.send_replace(2);
    let _runner = world.runner();
    let file = |name: &str| world.dir.path().join(name);
    let names: Vec<String> = (0..5).map(|number| format!("job-{number}")).collect();
    for name in &names {
        let (begun, go) = (file(&format!("begun-{name}")), file("go"));
        let wait = format!("touch {}; until [ -e {} ]; do sleep 0.05; done", begun.display(), go.display());
        world.job(name, &wait, 0).await;
    }
    let begun = || names.iter().filter(|name| file(&format!("begun-{name}")).exists()).count();
    let api: Api<Job> = Api::namespaced(world.client.clone(), NAMESPACE);
    let queued = async || {
        let says = |job: &&Job| {
            let mut conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.any(|condition| condition.type_ == "Queued" && condition.status == "True")
        };
        api.list(&ListParams::default()).await.unwrap().items.iter().filter(says).count()
    };
    eventually("two are running and three are queued", async || begun() == 2 && queued().await == 3).await;
    // A queued Job is deleted, and the limit is raised by one.
    let waiting = names.iter().find(|name| !file(&format!("begun-{name}")).exists()).unwrap();
    api.delete(waiting, &Default::default()).await.unwrap();
    world.limit.send_replace(3);
    // The deleted Job may have been started before the runner received its deletion; it does not count.
    let others =
        || names.iter().filter(|name| *name != waiting && file(&format!("begun-{name}")).exists()).count();
    eventually("three are running and one is queued", async || others() == 3 && queued().await == 1).await;
    std::fs::write(file("go"), "").unwrap();
    for name in names.iter().filter(|name| *name != waiting) {
        let job = world.finished(name, "Complete").await;
        let conditions = job.status.unwrap().conditions.unwrap();
        assert!(conditions.iter().all(|condition| condition.type_ != "Queued"), "{conditions:?}");
    }
}

/// The API with delayed watches.
fn delayed(
    service: ApiService,
) -> impl Service<
    Request<Body>,
    Response = Response<UnsyncBoxBody<Bytes, Infallible>>,
    Error = Infallible,
    Future: Send,
> + Send
+ 'static {
    tower::service_fn(move |request: Request<Body>| {
        let service = service.clone();
        async move {
            let watch = request.uri().query().is_some_and(|query| query.contains("watch="));
            let answer = service.oneshot(request).await?;
            Ok(answer.map(|body| {
                let delay = Duration::from_millis(if watch { 200 } else { 0 });
                let frames = BodyStream::new(body).then(move |frame| async move {
                    tokio::time::sleep(delay).await;
                    frame
                });
                StreamBody::new(frames).boxed_unsync()
            }))
        }
    })
}

/// A runner whose tasks are aborted when this is dropped.
struct Running(Option<tokio::runtime::Runtime>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

struct World {
    dir: tempfile::TempDir,
    server: Embedded,
    client: Client,
    limit: watch::Sender<usize>,
}

impl World {
    async fn start() -> Self {
        let server = Embedded::start(EmbeddedOptions::in_memory(Arc::new(
            Pki::in_memory(jiff::Timestamp::now()).unwrap(),
        )))
        .await
        .unwrap();
        let client = in_process_client(server.service(), UserInfo::system_masters("test"));
        Self { dir: tempfile::tempdir().unwrap(), server, client, limit: watch::Sender::new(16) }
    }

    fn runner(&self) -> Running {
        self.runner_until(CancellationToken::new())
    }

    fn runner_until(&self, stop: CancellationToken) -> Running {
        let options = RunnerOptions {
            label: "run",
            managed_by: "drover.io/test",
            program: "/bin/sh".into(),
            leading_args: vec!["-c".into()],
            env: vec![],
            dir: self.dir.path().join("jobs"),
            api_url: String::new(),
            ca_pem: String::new(),
            limit: self.limit.subscribe(),
            metrics: Metrics::default(),
        };
        let service = self.server.service();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let client = in_process_client(delayed(service), UserInfo::system_masters("runner"));
            let caches = Caches::new(client, CancellationToken::new());
            Runner::run(options, &caches, Arc::new(SystemClock), stop).await;
        });
        Running(Some(runtime))
    }

    async fn job(&self, name: &str, script: &str, backoff_limit: i32) {
        let job: Job = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"run": "yes"}},
            "spec": {"backoffLimit": backoff_limit, "managedBy": "drover.io/test", "template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "shell", "image": "none", "args": [script]}],
            }}},
        }))
        .unwrap();
        Api::<Job>::namespaced(self.client.clone(), NAMESPACE)
            .create(&PostParams::default(), &job)
            .await
            .unwrap();
    }

    async fn finished(&self, name: &str, how: &str) -> Job {
        let api: Api<Job> = Api::namespaced(self.client.clone(), NAMESPACE);
        eventually(&format!("{name} is {how}"), async || {
            let job = api.get(name).await.unwrap();
            let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|c| c.type_ == how && c.status == "True")
        })
        .await;
        api.get(name).await.unwrap()
    }

    /// Phase, exit code and message of each attempt.
    async fn attempts(&self, job: &str) -> Vec<(String, i32, String)> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let params = ListParams::default().labels(&format!("job-name={job}"));
        let mut pods = api.list(&params).await.unwrap().items;
        pods.sort_by_key(|pod| pod.creation_timestamp().map(|time| time.0));
        let of = |pod: Pod| {
            let status = pod.status.unwrap_or_default();
            let ended = status.container_statuses.iter().flatten().find_map(|c| c.state.clone()?.terminated);
            let ended = ended.unwrap_or_default();
            (status.phase.unwrap_or_default(), ended.exit_code, ended.message.unwrap_or_default())
        };
        pods.into_iter().map(of).collect()
    }
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// Counts the descriptors of all processes that refer to a file.
fn openers(path: &Path) -> usize {
    let path: PathBuf = path.canonicalize().unwrap_or_default();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let descriptors =
        processes.flat_map(|process| std::fs::read_dir(process.path().join("fd")).into_iter().flatten());
    descriptors
        .flatten()
        .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path))
        .count()
}

async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
