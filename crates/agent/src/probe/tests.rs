use std::{
    io,
    sync::atomic::{AtomicU16, AtomicUsize},
    time::Duration,
};

use drover_plan::HttpGetAction;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::host::{BoxFuture, BoxIo, Exec, Exit, MemoryHost, Program, Sink};

/// Port 1 answers with the status set, 2 never answers, 3 redirects to another host, 4 to a path that answers 200. The
/// answer of 5 has a body that never ends, that of 6 one that breaks off, that of 7 a long one that never ends.
#[derive(Clone, Default)]
struct Net {
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
    targets: Arc<Mutex<Vec<String>>>,
}

impl Program for Net {
    fn run<'a>(
        &'a self,
        _: &'a MemoryHost,
        _: &'a Exec,
        _: &'a mut dyn Sink,
    ) -> BoxFuture<'a, io::Result<Exit>> {
        Box::pin(async { Ok(Exit::Code(0)) })
    }

    fn dial<'a>(&'a self, _: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        let net = self.clone();
        Box::pin(async move {
            let (client, mut server) = tokio::io::duplex(4096);
            tokio::spawn(async move {
                let mut head = vec![0; 4096];
                let n = server.read(&mut head).await.unwrap_or(0);
                net.asked.fetch_add(1, Ordering::SeqCst);
                let text = String::from_utf8_lossy(&head[..n]).into_owned();
                net.targets.lock().unwrap().push(text.split(' ').nth(1).unwrap_or_default().to_owned());
                assert!(text.to_ascii_lowercase().contains("user-agent: kube-probe/"), "{text}");
                let answer = match port {
                    2 => {
                        std::future::pending::<()>().await;
                        return;
                    }
                    3 => "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n"
                        .to_owned(),
                    4 if text.starts_with("GET /ok ") => {
                        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned()
                    }
                    4 => "HTTP/1.1 301 Moved\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n".to_owned(),
                    5 | 6 => "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok".to_owned(),
                    7 => format!("HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{}", "x".repeat(20_000)),
                    _ => format!(
                        "HTTP/1.1 {} X\r\nContent-Length: 0\r\n\r\n",
                        net.status.load(Ordering::SeqCst)
                    ),
                };
                let _ = server.write_all(answer.as_bytes()).await;
                if matches!(port, 5 | 7) {
                    std::future::pending::<()>().await;
                }
            });
            Ok(Box::new(client) as BoxIo)
        })
    }
}

fn probe(port: u16) -> Probe {
    let url = format!("http://127.0.0.1:{port}/healthz");
    Probe { http_get: HttpGetAction { url, ..HttpGetAction::default() }, ..Probe::default() }
}

fn prober(net: &Net, ports: &[u16]) -> Prober {
    let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, net.clone()));
    let mut prober = Prober::new(host);
    let probes = ports.iter().map(|port| (port.to_string(), probe(*port))).collect();
    prober.follow(&probes, &Statuses::new());
    prober
}

async fn until(prober: &Prober, port: u16, wanted: impl Fn(&ProbeStatus) -> bool) {
    time::timeout(Duration::from_secs(300), async {
        while !wanted(&prober.statuses()[&port.to_string()]) {
            prober.changed().await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn agent_check_26_only_2xx_of_the_same_host_is_healthy() {
    let net = Net::default();
    net.status.store(200, Ordering::SeqCst);
    let prober = prober(&net, &[1, 3, 4]);
    until(&prober, 1, |status| status.healthy).await;
    until(&prober, 4, |status| status.healthy).await;
    until(&prober, 3, |status| !status.healthy && status.failure_count == 3).await;
    net.status.store(404, Ordering::SeqCst);
    until(&prober, 1, |status| !status.healthy).await;
    assert_eq!(prober.statuses()["1"], ProbeStatus { healthy: false, success_count: 0, failure_count: 3 });
}

#[tokio::test(start_paused = true)]
async fn agent_check_27_a_probe_that_hangs_delays_no_other_and_fails_in_time() {
    let net = Net::default();
    net.status.store(200, Ordering::SeqCst);
    let prober = prober(&net, &[1, 2]);
    let start = time::Instant::now();
    until(&prober, 1, |status| status.healthy).await;
    assert!(start.elapsed() < Duration::from_secs(1));
    until(&prober, 2, |status| status.failure_count == 3).await;
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn a_restart_forgets_and_waits_for_the_initial_delay() {
    let net = Net::default();
    net.status.store(200, Ordering::SeqCst);
    let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, net.clone()));
    let mut prober = Prober::new(host);
    let known =
        Statuses::from([("1".to_owned(), ProbeStatus { healthy: true, success_count: 1, failure_count: 0 })]);
    prober
        .follow(&BTreeMap::from([("1".to_owned(), Probe { initial_delay_seconds: 60, ..probe(1) })]), &known);
    assert!(prober.statuses()["1"].healthy, "an agent that restarts does not make healthy nodes unhealthy");
    prober.restart(true);
    assert!(!prober.statuses()["1"].healthy);
    let start = time::Instant::now();
    until(&prober, 1, |status| status.healthy).await;
    assert!(start.elapsed() >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_good_when_its_body_is_there_or_long() {
    let net = Net::default();
    let prober = prober(&net, &[5, 6, 7]);
    until(&prober, 7, |status| status.healthy).await;
    time::sleep(Duration::from_secs(60)).await;
    // As in the original, the status of the others stays as it was.
    assert_eq!(prober.statuses()["5"], ProbeStatus::default());
    assert_eq!(prober.statuses()["6"], ProbeStatus::default());
}

#[tokio::test(start_paused = true)]
async fn a_url_may_lack_a_path_or_hold_spaces() {
    for (url, target) in [("http://127.0.0.1:1?x=1", "/?x=1"), ("http://127.0.0.1:1/a b", "/a%20b")] {
        let net = Net::default();
        net.status.store(200, Ordering::SeqCst);
        let mut prober = Prober::new(Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, net.clone())));
        let mut question = probe(1);
        question.http_get.url = url.into();
        prober.follow(&BTreeMap::from([("1".to_owned(), question)]), &Statuses::new());
        until(&prober, 1, |status| status.healthy).await;
        assert_eq!(net.targets.lock().unwrap()[0], target);
    }
}

#[tokio::test(start_paused = true)]
async fn a_url_that_makes_no_sense_leaves_the_status() {
    let net = Net::default();
    let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, net.clone()));
    let mut prober = Prober::new(host);
    let mut bad = probe(1);
    bad.http_get.url = "no url".into();
    prober.follow(&BTreeMap::from([("bad".to_owned(), bad)]), &Statuses::new());
    time::sleep(Duration::from_secs(60)).await;
    assert_eq!(prober.statuses()["bad"], ProbeStatus::default());
    assert_eq!(net.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn spans_may_be_any_number_and_a_shorter_period_counts_at_once() {
    for extreme in [i64::MIN, -1, 0, 1, i64::MAX] {
        let net = Net::default();
        net.status.store(200, Ordering::SeqCst);
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, net.clone()));
        let mut prober = Prober::new(host);
        prober.set_period(u64::MAX);
        let question = Probe { timeout_seconds: extreme, initial_delay_seconds: extreme, ..probe(1) };
        prober.follow(&BTreeMap::from([("1".to_owned(), question)]), &Statuses::new());
        until(&prober, 1, |status| status.healthy).await;
        time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(net.asked.load(Ordering::SeqCst), 1);
        net.status.store(500, Ordering::SeqCst);
        prober.set_period(5);
        until(&prober, 1, |status| !status.healthy).await;
        prober.restart(false);
        time::sleep(Duration::from_secs(60)).await;
        let asked = net.asked.load(Ordering::SeqCst);
        assert!(
            if extreme == i64::MAX { asked == 4 } else { (14..=18).contains(&asked) },
            "{extreme}: {asked}"
        );
    }
}
