//! An agent on a simulated machine, whose programs end as the test specifies.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use drover_agent::{
    config::Config,
    host::{Attr, BoxFuture, BoxIo, Exec, Exit, Host as _, MemoryHost, Program, Sink, Source},
    sentinel::Sentinel,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Api;

/// Runs `x CODE SECONDS` as a program, records when, and responds to probes on port 80.
#[derive(Clone)]
pub struct World {
    api: Api,
    start: Instant,
    runs: Arc<Mutex<Vec<Run>>>,
    pub healthy: Arc<Mutex<bool>>,
    exit: Arc<Mutex<BTreeMap<String, i32>>>,
}

#[derive(Clone, Debug)]
pub struct Run {
    pub at: Duration,
    pub name: String,
    pub attempt: String,
}

impl Program for World {
    fn run<'a>(
        &'a self,
        _: &'a MemoryHost,
        exec: &'a Exec,
        sink: &'a mut dyn Sink,
    ) -> BoxFuture<'a, io::Result<Exit>> {
        let name = exec.args[0].clone();
        let attempt = exec.env.iter().rev().find(|(name, _)| name == "CATTLE_AGENT_ATTEMPT_NUMBER");
        let attempt = attempt.map(|(_, value)| value.clone()).unwrap_or_default();
        self.runs.lock().unwrap().push(Run { at: self.start.elapsed(), name: name.clone(), attempt });
        sink.write(Source::Stdout, format!("{name} ran\n").as_bytes());
        let code = self.exit.lock().unwrap().get(&name).copied().unwrap_or(0);
        let seconds: u64 = exec.args.get(1).map_or(0, |text| text.parse().unwrap());
        Box::pin(async move {
            sleep(Duration::from_secs(seconds)).await;
            Ok(Exit::Code(code))
        })
    }

    fn dial<'a>(&'a self, _: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        Box::pin(async move {
            if (port == 80 && !*self.healthy.lock().unwrap()) || (port != 80 && self.api.is_down()) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (here, mut there) = tokio::io::duplex(64 * 1024);
            let api = self.api.clone();
            tokio::spawn(async move {
                if port != 80 {
                    let _ = api.serve(there).await;
                    return;
                }
                use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
                let mut buffer = [0; 2048];
                let _ = there.read(&mut buffer).await;
                let _ = there.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            });
            Ok(Box::new(here) as BoxIo)
        })
    }
}

pub struct Node {
    pub world: World,
    pub host: Arc<MemoryHost>,
    pub task: Option<tokio::task::JoinHandle<()>>,
    pub pinned: bool,
}

impl Node {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, |host| host)
    }

    /// On a prepared machine.
    pub fn with(seed: u64, prepare: impl FnOnce(MemoryHost) -> MemoryHost) -> Self {
        Self::on(Api::new(), seed, prepare)
    }

    /// With an API server that others use too.
    pub fn on(api: Api, seed: u64, prepare: impl FnOnce(MemoryHost) -> MemoryHost) -> Self {
        let world = World {
            api,
            start: Instant::now(),
            runs: Arc::default(),
            healthy: Arc::new(Mutex::new(true)),
            exit: Arc::default(),
        };
        let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
        let host = Arc::new(prepare(MemoryHost::new(epoch, seed, world.clone())));
        host.make_dirs(Path::new("/v"), 0o700).unwrap();
        let text = world.api.connection("http://manager:8080");
        host.replace(Path::new("/v/connection.json"), text.as_bytes(), Attr { mode: 0o600, owner: None })
            .unwrap();
        Self { world, host, task: None, pinned: false }
    }

    pub fn start(&mut self) {
        let config = Config {
            work_directory: "/v/work".into(),
            applied_plan_directory: "/v/applied".into(),
            interlock_directory: "/v/interlock".into(),
            connection_info_file: "/v/connection.json".into(),
            remote_enabled: true,
            pin_agent: self.pinned,
            ..Config::default()
        };
        let sentinel = Sentinel::start(self.host.clone(), config, false).unwrap();
        self.task = Some(tokio::spawn(sentinel.run(std::future::pending())));
    }

    pub async fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// Waits until the machine has lost its power, or nothing was written for a minute; returns whether it has.
    pub async fn until_dark_or_quiet(&self) -> bool {
        let (mut writes, mut since) = (self.host.writes(), Instant::now());
        while !self.host.is_dead() {
            if self.host.writes() != writes {
                (writes, since) = (self.host.writes(), Instant::now());
            } else if since.elapsed() > Duration::from_secs(60) {
                return false;
            }
            sleep(Duration::from_millis(10)).await;
        }
        true
    }

    pub fn api(&self) -> &Api {
        &self.world.api
    }

    pub fn runs(&self, name: &str) -> Vec<Run> {
        self.world.runs.lock().unwrap().iter().filter(|run| run.name == name).cloned().collect()
    }

    pub fn exit(&self, name: &str, code: i32) {
        self.world.exit.lock().unwrap().insert(name.into(), code);
    }
}

pub fn plan(instructions: &[&str]) -> String {
    let instructions: Vec<Value> = instructions
        .iter()
        .map(|text| json!({"name": text, "command": "x", "args": text.split(' ').collect::<Vec<_>>(), "saveOutput": true}))
        .collect();
    json!({"instructions": instructions}).to_string()
}

pub const LONG: Duration = Duration::from_secs(4000);
