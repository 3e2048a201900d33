use std::{
    io,
    sync::atomic::{AtomicU16, AtomicUsize},
    time::Duration,
};

use drover_plan::HttpGetAction;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::host::{BoxFuture, BoxIo, Exec, Exit, MemoryHost, Program, Sink};

/// Port 1 responds with the status that is set, 2 never responds, 3 redirects to another host, 4 to a path that
/// responds 200. The response of 5 has a body that never ends, 6 one that is incomplete, 7 a long one that never ends.
#[derive(Clone, Default)]
struct Net {
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
    targets: Arc<Mutex<Vec<String>>>,
    heads: Arc<Mutex<Vec<String>>>,
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
                net.heads.lock().unwrap().push(text.clone());
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
async fn agent_check_27_a_hanging_probe_times_out_and_does_not_delay_others() {
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
async fn a_restart_resets_the_status_and_waits_for_the_initial_delay() {
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
async fn a_response_is_good_if_its_body_is_complete_or_long() {
    let net = Net::default();
    let prober = prober(&net, &[5, 6, 7]);
    until(&prober, 7, |status| status.healthy).await;
    time::sleep(Duration::from_secs(60)).await;
    // As in the original, the status of the others does not change.
    assert_eq!(prober.statuses()["5"], ProbeStatus::default());
    assert_eq!(prober.statuses()["6"], ProbeStatus::default());
}

#[tokio::test(start_paused = true)]
async fn a_url_can_have_no_path_or_contain_spaces() {
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
async fn credentials_of_the_url_are_also_sent_after_a_redirect() {
    let net = Net::default();
    let mut prober = Prober::new(Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, net.clone())));
    let mut question = probe(4);
    question.http_get.url = "http://u:p%40w@127.0.0.1:4/".into();
    prober.follow(&BTreeMap::from([("4".to_owned(), question)]), &Statuses::new());
    until(&prober, 4, |status| status.healthy).await;
    let heads = net.heads.lock().unwrap();
    assert_eq!(heads.len(), 2);
    for head in &*heads {
        assert!(head.contains("authorization: Basic dTpwQHc=\r\n"), "{head}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_non_http_url_fails_and_a_malformed_one_keeps_the_status() {
    let net = Net::default();
    let mut prober = Prober::new(Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, net.clone())));
    let urls = [("empty", ""), ("ftp", "ftp://h/"), ("words", "no url"), ("bad", "127.0.0.1:80/x")];
    let probes = urls.map(|(name, url)| {
        let mut probe = probe(1);
        probe.http_get.url = url.into();
        (name.to_owned(), probe)
    });
    prober.follow(&probes.into(), &Statuses::new());
    time::sleep(Duration::from_secs(60)).await;
    let statuses = prober.statuses();
    for name in ["empty", "ftp", "words"] {
        assert_eq!(statuses[name].failure_count, 3, "{name}");
    }
    assert_eq!(statuses["bad"], ProbeStatus::default());
    assert_eq!(net.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn extreme_durations_are_accepted_and_a_shorter_period_applies_at_once() {
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

/// An https server that sends one response and closes the connection without a TLS close_notify.
#[derive(Clone)]
struct AbruptServer(tokio_rustls::TlsAcceptor, &'static str);

impl AbruptServer {
    fn new(answer: &'static str) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Self(Arc::new(config).into(), answer)
    }
}

impl Program for AbruptServer {
    fn dial<'a>(&'a self, _: &'a str, _: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        let Self(acceptor, answer) = self.clone();
        Box::pin(async move {
            let (client, server) = tokio::io::duplex(4096);
            tokio::spawn(async move {
                let mut server = acceptor.accept(server).await.unwrap();
                server.read_buf(&mut Vec::with_capacity(4096)).await.unwrap();
                server.write_all(answer.as_bytes()).await.unwrap();
                server.flush().await.unwrap();
            });
            Ok(Box::new(client) as BoxIo)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_ends_with_the_connection_needs_no_close_notify() {
    for (answer, good) in [
        ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok", true),
        ("HTTP/1.0 200 OK\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", false),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", false),
    ] {
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, AbruptServer::new(answer)));
        let action = HttpGetAction { url: "https://h/".into(), insecure: true, ..HttpGetAction::default() };
        match check::Check::new(host, &action).run(5).await {
            check::Outcome::Healthy => assert!(good, "{answer}"),
            check::Outcome::Unusable(why) => assert!(!good, "{answer}: {why}"),
            check::Outcome::Unhealthy(why) => panic!("{answer}: {why}"),
        }
    }
}
