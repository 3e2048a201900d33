//! Outdated lists: requested before the agent's own write, or from a server that was restored from a backup. The first
//! must not cause a second run, the second must be accepted. Outdated watches must be ignored.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use common::{Api, Body, node::plan, status};
use drover_agent::{
    config::Config,
    host::{Attr, BoxFuture, BoxIo, Exec, Exit, Host as _, MemoryHost, Program, Sink},
    sentinel::Sentinel,
};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
    time::sleep,
};

/// Between the agent and the API: on request it ends the watch, delays an update, and returns old data.
#[derive(Clone)]
struct Between(Arc<State>);

struct State {
    api: Api,
    end_watch: Notify,
    listed: Notify,
    /// The update that waits until the watch ended and a list was returned.
    overtaken: usize,
    puts: AtomicUsize,
    lists: AtomicUsize,
    gets: AtomicUsize,
    runs: AtomicUsize,
    /// The first list.
    backup: Mutex<Option<Bytes>>,
    restored: Mutex<bool>,
    /// The events of the watch when it ends; if there are none, it reports that it expired.
    late: Mutex<Vec<&'static str>>,
    /// Whether probes get a response.
    healthy: AtomicBool,
}

impl Between {
    fn new(overtaken: usize) -> Self {
        Self(Arc::new(State {
            api: Api::new(),
            end_watch: Notify::new(),
            listed: Notify::new(),
            overtaken,
            puts: AtomicUsize::new(0),
            lists: AtomicUsize::new(0),
            gets: AtomicUsize::new(0),
            runs: AtomicUsize::new(0),
            backup: Mutex::default(),
            restored: Mutex::default(),
            late: Mutex::default(),
            healthy: AtomicBool::new(true),
        }))
    }

    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let state = &*self.0;
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        if *request.method() == Method::PUT {
            if state.puts.fetch_add(1, SeqCst) + 1 == state.overtaken {
                state.end_watch.notify_one();
                state.listed.notified().await;
                // The agent's other task has received it by then.
                sleep(Duration::from_secs(1)).await;
            }
            return state.api.answer(request).await;
        }
        if query.contains("watch=true") {
            state.end_watch.notified().await;
            let late = std::mem::take(&mut *state.late.lock().unwrap());
            if late.is_empty() {
                return Ok(status(410, "too old"));
            }
            let list: Value = serde_json::from_slice(state.backup.lock().unwrap().as_ref().unwrap()).unwrap();
            let event = |kind| format!("{}\n", json!({"type": kind, "object": list["items"][0]}));
            return Ok(whole(late.into_iter().map(event).collect::<String>().into()));
        }
        if path.ends_with("/secrets") {
            let body = self.backed_up(state.api.answer(request).await?).await;
            state.lists.fetch_add(1, SeqCst);
            if state.lists.load(SeqCst) > 1 {
                state.listed.notify_one();
            }
            return Ok(whole(body));
        }
        if path.contains("/secrets/") {
            state.gets.fetch_add(1, SeqCst);
            let backup = state.backup.lock().unwrap().clone().filter(|_| *state.restored.lock().unwrap());
            if let Some(backup) = backup {
                let list: Value = serde_json::from_slice(&backup).unwrap();
                return Ok(whole(list["items"][0].to_string().into()));
            }
        }
        state.api.answer(request).await
    }

    async fn backed_up(&self, answer: Response<Body>) -> Bytes {
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let first = self.0.backup.lock().unwrap().get_or_insert_with(|| body.clone()).clone();
        if *self.0.restored.lock().unwrap() { first } else { body }
    }

    fn start(&self) -> tokio::task::JoinHandle<()> {
        let host = MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, self.clone());
        host.make_dirs(Path::new("/v"), 0o700).unwrap();
        let text = self.0.api.connection("http://manager:8080");
        let file = Path::new("/v/connection.json");
        host.replace(file, text.as_bytes(), Attr { mode: 0o600, owner: None }).unwrap();
        let config = Config {
            work_directory: "/v/work".into(),
            connection_info_file: file.into(),
            remote_enabled: true,
            ..Config::default()
        };
        let sentinel = Sentinel::start(Arc::new(host), config, false).unwrap();
        tokio::spawn(async move { sentinel.run(std::future::pending()).await })
    }
}

fn whole(body: Bytes) -> Response<Body> {
    Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync())
}

impl Program for Between {
    fn run<'a>(
        &'a self,
        _: &'a MemoryHost,
        _: &'a Exec,
        _: &'a mut dyn Sink,
    ) -> BoxFuture<'a, io::Result<Exit>> {
        self.0.runs.fetch_add(1, SeqCst);
        Box::pin(async { Ok(Exit::Code(0)) })
    }

    fn dial<'a>(&'a self, _: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        let (here, mut there) = tokio::io::duplex(64 * 1024);
        let between = self.clone();
        if port == 80 && !self.0.healthy.load(SeqCst) {
            return Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) });
        }
        tokio::spawn(async move {
            if port == 80 {
                let _ = there.read(&mut [0; 2048]).await;
                let _ = there.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                return;
            }
            let service = hyper::service::service_fn(move |request| {
                let between = between.clone();
                async move { between.answer(request).await }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(there), service).await;
        });
        Box::pin(async { Ok(Box::new(here) as BoxIo) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_older_than_the_agents_own_update_causes_no_second_run() {
    // The first update contains in-progress, the second the result.
    let between = Between::new(2);
    let api = between.0.api.clone();
    api.create(&[("plan", &plan(&["i"])), ("plan-state", "pending")]);
    let agent = between.start();
    api.until_text("plan-state", "succeeded").await;
    // The list was outdated; another read gets the current state.
    api.until("another read", |_| between.0.gets.load(SeqCst) >= 2).await;
    sleep(Duration::from_secs(20)).await;
    assert!(between.0.lists.load(SeqCst) >= 2);
    assert_eq!(between.0.runs.load(SeqCst), 1, "nothing runs twice");
    assert_eq!(api.text("plan-state"), "succeeded");
    assert_eq!(api.text("success-count"), "1");
    agent.abort();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_restored_from_a_backup_is_trusted() {
    let between = Between::new(usize::MAX);
    let api = between.0.api.clone();
    api.create(&[("plan", &plan(&["i"])), ("plan-state", "pending")]);
    let agent = between.start();
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(between.0.puts.load(SeqCst), 2);
    *between.0.restored.lock().unwrap() = true;
    between.0.end_watch.notify_one();
    // The plan is pending as in the backup, with a lower revision than the agent wrote.
    api.until("it applies the plan and reports it", |_| between.0.puts.load(SeqCst) > 2).await;
    agent.abort();
}

#[tokio::test(start_paused = true)]
async fn a_recreated_secret_is_used_although_the_watch_has_not_reported_it() {
    let probed = |name: &str| {
        json!({
            "instructions": [{"name": name, "command": "x", "args": [name]}],
            "probes": {"p": {"httpGet": {"url": "http://127.0.0.1/"}}},
        })
        .to_string()
    };
    let between = Between::new(usize::MAX);
    let (state, api) = (&*between.0, between.0.api.clone());
    api.create(&[("plan", &probed("old")), ("plan-state", "pending")]);
    let agent = between.start();
    api.until("it is healthy", |api| api.text("probe-statuses").contains("true")).await;
    // Another secret with the same name. The watch reports nothing, but not long enough to be considered dead; a
    // changed probe makes the agent read the secret.
    let (gets, runs) = (state.gets.load(SeqCst), state.runs.load(SeqCst));
    api.create(&[("plan", &probed("new")), ("plan-state", "pending")]);
    state.healthy.store(false, SeqCst);
    api.until_text("plan-state", "succeeded").await;
    sleep(Duration::from_secs(8)).await;
    let asked = state.gets.load(SeqCst) - gets;
    assert!(asked < 20, "it was read {asked} times");
    assert_eq!((state.lists.load(SeqCst), state.runs.load(SeqCst)), (1, runs + 1));

    // Late events about the first secret are ignored.
    state.late.lock().unwrap().extend(["MODIFIED", "DELETED"]);
    state.end_watch.notify_one();
    sleep(Duration::from_secs(8)).await;
    state.healthy.store(true, SeqCst);
    api.until("it is healthy again", |api| api.text("probe-statuses").contains("true")).await;
    assert_eq!((state.lists.load(SeqCst), state.runs.load(SeqCst)), (1, runs + 1));
    agent.abort();
}
