use std::{
    io,
    sync::{
        Mutex,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
};

use super::*;
use crate::{
    config::Config,
    host::{BoxFuture, Exec, Exit, MemoryHost, Program, Sink, Source},
};

#[derive(Clone, Default)]
struct Script {
    exit: Arc<AtomicI32>,
    runs: Arc<AtomicUsize>,
    attempts: Arc<Mutex<Vec<String>>>,
}

impl Program for Script {
    fn run<'a>(
        &'a self,
        _: &'a MemoryHost,
        exec: &'a Exec,
        sink: &'a mut dyn Sink,
    ) -> BoxFuture<'a, io::Result<Exit>> {
        let attempt = exec.env.iter().find(|(name, _)| name == "CATTLE_AGENT_ATTEMPT_NUMBER").unwrap();
        self.attempts.lock().unwrap().push(attempt.1.clone());
        self.runs.fetch_add(1, Ordering::SeqCst);
        sink.write(Source::Stdout, b"out");
        let code = self.exit.load(Ordering::SeqCst);
        Box::pin(async move { Ok(Exit::Code(code)) })
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_check_37_skipped_plans_wait_and_failed_ones_are_retried() {
    let script = Script::default();
    let host = Arc::new(MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, script.clone()));
    let put = |path: &str, text: &str| {
        host.replace(Path::new(path), text.as_bytes(), Attr { mode: 0o600, owner: None }).unwrap();
    };
    let config = Config { work_directory: "/w/work".into(), ..Config::default() };
    let applier = Arc::new(Applier::new(host.clone(), &config));
    let board = Arc::new(Board::new(host.clone(), Path::new("/w")));
    let task = tokio::spawn(Local::new(host.clone(), Path::new("/plans"), applier, board).run());
    until("the directory is created", || host.stat(Path::new("/plans")).is_ok()).await;
    put("/plans/a.plan.skip", "");
    put("/plans/.b.plan", r#"{"instructions":[{"command":"x"}]}"#);
    put("/plans/a.plan", r#"{"instructions":[{"name":"i","command":"x","saveOutput":true}]}"#);
    time::sleep(Duration::from_secs(20)).await;
    assert_eq!(script.runs.load(Ordering::SeqCst), 0);

    script.exit.store(1, Ordering::SeqCst);
    host.remove_file(Path::new("/plans/a.plan.skip")).unwrap();
    let removed = Instant::now();
    until("the plan is applied", || script.runs.load(Ordering::SeqCst) == 1).await;
    assert!(removed.elapsed() < Duration::from_secs(5));
    script.exit.store(0, Ordering::SeqCst);
    until("the plan is retried", || script.runs.load(Ordering::SeqCst) == 2).await;
    assert!(removed.elapsed() >= COOLDOWN);
    until("its state is written", || {
        host.read(Path::new("/plans/a.pos"))
            .is_ok_and(|bytes| bytes.windows(15).any(|w| w == b"appliedChecksum"))
    })
    .await;
    time::sleep(Duration::from_secs(60)).await;
    assert_eq!(script.runs.load(Ordering::SeqCst), 2, "applied once");
    assert_eq!(host.stat(Path::new("/plans/a.pos")).unwrap().mode, 0o600);
    assert_eq!(*script.attempts.lock().unwrap(), ["0", "1"], "each attempt has its own number");
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_symlink_is_applied_unless_others_can_write_its_target() {
    let script = Script::default();
    let host = Arc::new(MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, script.clone()));
    let config = Config { work_directory: "/w/work".into(), ..Config::default() };
    let applier = Arc::new(Applier::new(host.clone(), &config));
    let board = Arc::new(Board::new(host.clone(), Path::new("/w")));
    let mut local = Local::new(host.clone(), Path::new("/plans"), applier, board);
    host.make_dirs(Path::new("/plans/sub.plan"), 0o700).unwrap();
    host.make_dirs(Path::new("/else"), 0o755).unwrap();
    let plan = |name: &str, mode, owner| {
        let (target, link) = (format!("/else/{name}"), format!("/plans/{name}.plan"));
        let attr = Attr { mode, owner: Some(owner) };
        host.replace(Path::new(&target), br#"{"instructions":[{"command":"x"}]}"#, attr).unwrap();
        host.symlink(Path::new(&target), Path::new(&link)).unwrap();
    };
    plan("good", 0o644, (0, 7));
    plan("foreign", 0o600, (7, 7));
    plan("open", 0o646, (0, 0));
    plan("skipped", 0o600, (0, 0));
    host.symlink(Path::new("/else"), Path::new("/plans/folder.plan")).unwrap();
    host.symlink(Path::new("/gone"), Path::new("/plans/gone.plan")).unwrap();
    host.replace(Path::new("/plans/skipped.plan.skip"), b"", Attr { mode: 0o600, owner: None }).unwrap();
    let found = local.find();
    let good = Path::new("/plans/good.plan");
    assert_eq!(found.plans, [good]);
    assert!(found.linked, "so it is scanned often, because link targets are not watched");
    let complaints: Vec<_> = found.complaints.into_iter().collect();
    assert_eq!(complaints.len(), 4, "{complaints:?}");
    assert!(complaints[0].starts_with(
        "not applying /plans/folder.plan: it is a symbolic link to something that is not a file"
    ));
    assert!(complaints[1].contains("uid 7") && complaints[2].contains("gone.plan"), "{complaints:?}");
    assert!(complaints[3].contains("mode 0646"), "{complaints:?}");
    local.check(good).await;
    local.check(good).await;
    assert_eq!(script.runs.load(Ordering::SeqCst), 1);
    assert!(host.read(Path::new("/plans/good.pos")).is_ok(), "its state is next to the link");
}

/// On a real disk and in real time: without a watch, the plan would be found only after a minute.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_new_plan_on_a_real_disk_is_noticed_at_once() {
    let root = tempfile::tempdir().unwrap();
    let host = Arc::new(crate::host::RealHost::at(root.path()));
    let (uid, gid) = host.identity();
    let plan = |name: &str| {
        let file = drover_plan::File {
            path: format!("/made/{name}"),
            uid: uid.into(),
            gid: gid.into(),
            ..Default::default()
        };
        drover_plan::to_vec(&Plan { files: vec![file], ..Plan::default() }).unwrap()
    };
    let config = Config { work_directory: "/w/work".into(), ..Config::default() };
    let applier = Arc::new(Applier::new(host.clone(), &config));
    let board = Arc::new(Board::new(host.clone(), Path::new("/w")));
    let task = tokio::spawn(Local::new(host, Path::new("/plans"), applier, board).run());
    let made = |name: &str| root.path().join("made").join(name).exists();
    let seen = async |name: &str| {
        let deadline = Instant::now() + IDLE / 2;
        while !made(name) {
            assert!(Instant::now() < deadline, "timed out waiting for {name}");
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    until("the directory is created", || root.path().join("plans").exists()).await;
    std::fs::write(root.path().join("plans/a.plan"), plan("a")).unwrap();
    seen("a").await;
    std::fs::create_dir(root.path().join("plans/sub")).unwrap();
    std::fs::write(root.path().join("plans/sub/b.plan"), plan("b")).unwrap();
    seen("b").await;
    std::fs::remove_dir_all(root.path().join("plans")).unwrap();
    until("it is recreated", || root.path().join("plans").exists()).await;
    std::fs::write(root.path().join("plans/c.plan"), plan("c")).unwrap();
    seen("c").await;
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn on_a_full_disk_no_plan_is_repeated() {
    let script = Script::default();
    let host = Arc::new(MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, script.clone()));
    let config = Config { work_directory: "/w/work".into(), ..Config::default() };
    let applier = Arc::new(Applier::new(host.clone(), &config));
    let board = Arc::new(Board::new(host.clone(), Path::new("/w")));
    host.crash_after_writes(0);
    let mut local = Local::new(host.clone(), Path::new("/plans"), applier, board);
    assert_eq!(local.find().complaints.len(), 1);
    host.restart();
    assert!(local.find().complaints.is_empty());
    assert!(host.stat(Path::new("/plans")).is_ok());

    let path = Path::new("/plans/a.plan");
    let attr = Attr { mode: 0o600, owner: None };
    host.replace(path, br#"{"instructions":[{"command":"x"}]}"#, attr).unwrap();
    // Its state cannot be written, because a directory is in the way.
    host.make_dirs(Path::new("/plans/a.pos"), 0o700).unwrap();
    for _ in 0..3 {
        assert_eq!(local.check(path).await, Some(SCAN));
    }
    assert_eq!(script.runs.load(Ordering::SeqCst), 1, "an applied plan is not applied again");
    host.remove_tree(Path::new("/plans/a.pos")).unwrap();
    assert_eq!(local.check(path).await, None, "nothing is left to do");
    assert!(host.read(Path::new("/plans/a.pos")).is_ok());
    assert_eq!(local.check(path).await, None);
    assert_eq!(script.runs.load(Ordering::SeqCst), 1);
}
