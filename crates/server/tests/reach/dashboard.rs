//! `docs/metrics.md` and `deploy/grafana/drover.json` contain exactly the metrics of a running server.

use std::collections::{BTreeMap, BTreeSet};

use drover_testkit::metrics::Scrape;
use serde_json::Value;

use crate::metrics::scrape;
use crate::world::World;

const PAGE: &str = include_str!("../../../../docs/metrics.md");
const DASHBOARD: &str = include_str!("../../../../deploy/grafana/drover.json");
/// Labels that Prometheus adds to every sample.
const ADDED: [&str; 2] = ["job", "instance"];

/// Type and labels of a metric in the page.
type Documented = BTreeMap<&'static str, (&'static str, BTreeSet<&'static str>)>;

fn documented(page: &'static str) -> Documented {
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, meaning] = cells[..] else { panic!("not four cells: {line}") };
        assert!(!meaning.is_empty(), "{line}");
        let labels =
            labels.split(", ").filter(|label| !label.is_empty()).map(|label| label.trim_matches('`'));
        (name.trim_matches('`'), (kind, labels.collect()))
    };
    page.lines().filter(|line| line.starts_with("| `")).map(row).collect()
}

/// The metrics in the page for the embedded API, and those for an external API.
fn pages() -> (Documented, Documented) {
    let (before, after) = PAGE.split_once("\n## Another Kubernetes API\n").unwrap();
    let (other, after) = after.split_once("\n## ").unwrap();
    let mut embedded = documented(before);
    embedded.extend(documented(after));
    (embedded, documented(other))
}

/// The names of a metric's samples.
fn samples(name: &str, kind: &str) -> Vec<String> {
    match kind {
        "histogram" => ["_bucket", "_sum", "_count"].iter().map(|end| format!("{name}{end}")).collect(),
        _ => vec![name.to_owned()],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_lists_every_metric_with_its_type_and_labels() {
    let world = World::start().await;
    world.make_cluster("listed").await;
    let shown = drover_testkit::eventually(async || {
        let shown = scrape(&world).await;
        if shown.labels("drover_waits").is_some() { Ok(shown) } else { Err("nothing waits yet") }
    })
    .await;
    world.stop().await;
    let (page, _) = pages();
    let types: BTreeMap<&str, &str> = shown
        .types
        .iter()
        .map(|(name, kind)| {
            let total = page.keys().find(|known| known.strip_suffix("_total") == Some(name));
            (total.copied().unwrap_or(name), kind.as_str())
        })
        .collect();
    let listed = page.iter().map(|(name, (kind, _))| (*name, *kind)).collect();
    assert_eq!(types, listed, "left: what the server shows; right: docs/metrics.md");
    for (name, (kind, labels)) in &page {
        for sample in samples(name, kind) {
            let Some(mut found) = shown.labels(&sample) else { panic!("there is no {sample}") };
            found.remove("le");
            assert_eq!(&found, labels, "labels of {sample}; right: docs/metrics.md");
        }
    }
}

#[test]
fn every_query_of_the_dashboard_uses_existing_metrics_and_labels() {
    let (embedded, other) = pages();
    let mut known: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, (kind, labels)) in embedded.iter().chain(&other) {
        for sample in samples(name, kind) {
            let mut labels: BTreeSet<&str> = labels.iter().copied().chain(ADDED).collect();
            if sample.ends_with("_bucket") {
                labels.insert("le");
            }
            known.insert(sample, labels);
        }
    }
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = vec![];
    collect(&dashboard, &mut queries);
    assert!(queries.len() > 40, "only {} queries were found", queries.len());
    let mut asked = BTreeSet::new();
    for query in &queries {
        let Query { metrics, grouped } = Query::parse(query);
        assert!(!metrics.is_empty(), "{query}");
        for (name, labels) in &metrics {
            let Some(there) = known.get(name) else { panic!("{query}: docs/metrics.md has no {name}") };
            for label in labels.iter().chain(&grouped) {
                assert!(there.contains(label.as_str()), "{query}: {name} has no label {label}");
            }
            asked.insert(name.clone());
        }
    }
    for prefix in ["drover_", "workqueue_", "controller_runtime_", "apiserver_", "rest_client_", "process_"] {
        assert!(asked.iter().any(|name| name.starts_with(prefix)), "no panel shows {prefix}*");
    }
}

/// The `expr` of all panels, and the queries of variables.
fn collect(value: &Value, queries: &mut Vec<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|value| collect(value, queries)),
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "expr" => queries.push(text.clone()),
                    _ => collect(value, queries),
                }
            }
        }
        _ => {}
    }
}

/// The metrics and labels of a PromQL query.
#[derive(Debug, PartialEq)]
struct Query {
    /// With the labels of its selectors.
    metrics: Vec<(String, Vec<String>)>,
    /// The labels of `by (…)`.
    grouped: Vec<String>,
}

impl Query {
    fn parse(text: &str) -> Self {
        let mut query = Self { metrics: vec![], grouped: vec![] };
        let mut rest = text;
        while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || "_\"[".contains(c)) {
            rest = &rest[start..];
            if let Some(range) = rest.strip_prefix('[') {
                rest = range.split_once(']').expect(text).1;
                continue;
            }
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let after = after.trim_start();
            rest = after;
            if word == "by" {
                let (labels, behind) =
                    after.strip_prefix('(').and_then(|list| list.split_once(')')).expect(text);
                query.grouped.extend(labels.split(',').map(|label| label.trim().to_owned()));
                rest = behind;
            } else if let Some(selectors) = after.strip_prefix('{') {
                let (selectors, behind) = selectors.split_once('}').expect(text);
                let label = |selector: &str| selector.split(['=', '!']).next().unwrap().trim().to_owned();
                query.metrics.push((word.to_owned(), selectors.split(',').map(label).collect()));
                rest = behind;
            } else {
                // Without a selector, a query would mix the servers of one Prometheus.
                let function = after.starts_with('(') || after.starts_with("by ");
                assert!(function, "{text}: {word} has no selector");
            }
        }
        query
    }
}

#[test]
fn queries_are_parsed_as_by_prometheus() {
    let text = r#"histogram_quantile(0.99, sum by (le, name) (rate(a_bucket{job=~"$job",x!="y"}[$__rate_interval]))) / sum(b{z="1"})"#;
    let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let expected = Query {
        metrics: vec![("a_bucket".into(), strings(&["job", "x"])), ("b".into(), strings(&["z"]))],
        grouped: strings(&["le", "name"]),
    };
    assert_eq!(Query::parse(text), expected);
}

/// The page's tables for an external API are checked here, because no test of this crate runs one.
#[tokio::test]
async fn requests_to_an_external_api_are_counted_as_documented() {
    use drover_runtime::metrics::Requests;
    use tower::{Layer as _, ServiceExt as _};
    let requests = Requests::new("api:6443");
    let service = requests.layer(tower::service_fn(async |request: http::Request<()>| {
        let found = request.uri().path() == "/found";
        if request.uri().path() == "/lost" {
            return Err("connection lost");
        }
        Ok(http::Response::builder().status(if found { 200 } else { 404 }).body(()).unwrap())
    }));
    for path in ["/found", "/found", "/other", "/lost"] {
        let _ = service.clone().oneshot(http::Request::get(path).body(()).unwrap()).await;
    }
    let metrics = drover_server::metrics::Metrics::default();
    metrics.register(|registry| requests.register(registry));
    metrics.leads("drover-server", true);
    let shown = Scrape::parse(&metrics.text());
    for (code, count) in [("200", 2.0), ("404", 1.0), ("<error>", 1.0)] {
        assert_eq!(
            shown.sum("rest_client_requests_total", &[("code", code), ("method", "GET")]),
            count,
            "{code}"
        );
    }
    assert_eq!(shown.sum("leader_election_master_status", &[("name", "drover-server")]), 1.0);
    let (_, page) = pages();
    for (name, (kind, labels)) in &page {
        for sample in samples(name, kind) {
            let Some(mut found) = shown.labels(&sample) else { panic!("there is no {sample}") };
            found.remove("le");
            assert_eq!(&found, labels, "{sample}");
        }
    }
}
