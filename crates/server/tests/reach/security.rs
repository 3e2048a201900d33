//! `docs/security.md` lists every path of the port and the response to an anonymous caller.

use std::collections::{BTreeMap, BTreeSet};

use drover_server::routes::ROUTES;
use http::Method;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::world::World;

const PAGE: &str = include_str!("../../../../docs/security.md");

/// A row of the endpoint tables.
struct Row {
    methods: String,
    /// Possible responses to an anonymous caller.
    anonymous: Vec<u16>,
}

/// The rows of the table below a heading, by path.
fn table(heading: &str) -> BTreeMap<&'static str, Row> {
    let part = PAGE.split_once(&format!("\n### {heading}\n")).expect("the heading is there").1;
    let part = part.split_once("\n#").map_or(part, |(part, _)| part);
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [path, methods, anonymous, who, limits] = cells[..] else { panic!("not five cells: {line}") };
        assert!(!who.is_empty() && !limits.is_empty(), "{line}");
        let anonymous = anonymous.split(", ").map(|code| code.parse().expect(line)).collect();
        (path.trim_matches('`'), Row { methods: methods.to_owned(), anonymous })
    };
    part.lines().filter(|line| line.starts_with("| `/")).map(row).collect()
}

/// A client without credentials.
async fn anonymous(world: &World) -> Client {
    let text = std::fs::read_to_string(world.manager.data_dir.kubeconfig()).unwrap();
    let mut kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
    kubeconfig.auth_infos[0].auth_info = Some(Default::default());
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

async fn status(client: &Client, method: &Method, path: &str) -> u16 {
    let request = http::Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    client.send(request).await.unwrap().status().as_u16()
}

/// An example path of the pattern.
fn example(pattern: &str) -> String {
    let path = pattern.replace("{version}/...", "{version}/secrets").replace("/...", "/x");
    let path = if path.starts_with("/api/") { path.replace("{version}", "v1") } else { path };
    path.replace("{group}", "rke.cattle.io").replace("{version}", "v1").replace("{check}", "ping")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_path_of_the_port_is_documented_and_answers_anonymous_callers_as_documented() {
    let world = World::start().await;
    let (drover, api) = (table("Drover's own"), table("The Kubernetes API"));
    let documented: BTreeSet<&str> = drover.keys().chain(api.keys()).copied().collect();
    let served: BTreeSet<&str> = world.manager.paths().into_iter().collect();
    assert_eq!(served, documented, "left: what the server answers; right: docs/security.md");

    for route in ROUTES {
        let methods: Vec<&str> = route.methods.iter().map(Method::as_str).collect();
        let methods = if methods.is_empty() { "all".to_owned() } else { methods.join(", ") };
        assert_eq!(drover[route.path].methods, methods, "{}", route.path);
    }
    let client = anonymous(&world).await;
    for (path, row) in drover.iter().chain(&api) {
        let answer = status(&client, &Method::GET, &example(path)).await;
        assert!(row.anonymous.contains(&answer), "GET {path}: {answer}, documented is {:?}", row.anonymous);
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_paths_answer_get_and_head_only() {
    let world = World::start().await;
    let client = anonymous(&world).await;
    for path in ["/cacerts", "/v3/settings/cacerts", "/ping", "/system-agent-install.sh", "/assets/x", "/v2/"]
    {
        let expected = if path == "/assets/x" { 404 } else { 200 };
        for method in [Method::GET, Method::HEAD] {
            assert_eq!(status(&client, &method, path).await, expected, "{method} {path}");
        }
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS] {
            let request = http::Request::builder().method(&method).uri(path).body(Body::empty()).unwrap();
            let response = client.send(request).await.unwrap();
            assert_eq!(response.status(), 405, "{method} {path}");
            assert_eq!(response.headers()["allow"], "GET, HEAD", "{method} {path}");
        }
    }
    world.stop().await;
}
