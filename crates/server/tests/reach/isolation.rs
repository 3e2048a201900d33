//! A cluster that accepts connections and never responds does not affect 199 others.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use drover_access_api::handle::MAX_CALLS;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use kube::api::DeleteParams;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

use crate::provider::{CORE, kubeconfig, make_cluster, make_kinds, make_machine, set_kubeconfig};
use crate::world::World;

const OTHERS: usize = 199;
const BLACK_HOLE: &str = "dark";
/// More Machines than the other clusters have, and more than the limit of concurrent calls.
const DARK_MACHINES: usize = 40;

/// APIs of many clusters, by the first path segment, with what Machines need to find and drain their Nodes.
#[derive(Clone, Default)]
struct Apis {
    dark: Arc<AtomicBool>,
    /// Requests in flight by cluster, without watches: current and maximum.
    calls: Arc<Mutex<HashMap<String, (usize, usize)>>>,
    watches: Arc<Mutex<HashMap<String, broadcast::Sender<Bytes>>>>,
}

struct Call(Apis, String);

impl Drop for Call {
    fn drop(&mut self) {
        if let Some((now, _)) = self.0.calls.lock().get_mut(&self.1) {
            *now -= 1;
        }
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

impl Apis {
    async fn serve(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let apis = self.clone();
            let service = hyper::service::service_fn(move |request| {
                let apis = apis.clone();
                async move { Ok::<_, Infallible>(apis.answer(request).await) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let (cluster, path) = request.uri().path()[1..].split_once('/').unwrap();
        let (cluster, path) = (cluster.to_owned(), path.to_owned());
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if is_watch {
            let events = self.watch(&cluster).subscribe();
            let events = futures::stream::unfold(events, async |mut events| {
                let line = events.recv().await.ok()?;
                Some((Ok::<_, Infallible>(Frame::data(line)), events))
            });
            return Response::new(StreamBody::new(events).boxed_unsync());
        }
        let _call = self.count(&cluster);
        if cluster == BLACK_HOLE && self.dark.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        let count = if cluster == BLACK_HOLE { DARK_MACHINES } else { 1 };
        let answer = match (request.method(), path.as_str()) {
            (_, "version") => json!({"major": "1", "minor": "34", "gitVersion": "v1.34.1"}),
            (&Method::GET, "api/v1/nodes") => {
                list("v1", "NodeList", (0..count).map(|number| node(&cluster, number)).collect())
            }
            (&Method::GET, "api/v1/pods") => list("v1", "PodList", vec![]),
            (&Method::GET, "apis/storage.k8s.io/v1/volumeattachments") => {
                list("storage.k8s.io/v1", "VolumeAttachmentList", vec![])
            }
            (method @ (&Method::PATCH | &Method::DELETE), path) => {
                let mut node = node(&cluster, path.rsplit('-').next().unwrap().parse().unwrap());
                if method == Method::DELETE {
                    node["metadata"]["resourceVersion"] = json!("2");
                    let event = json!({"type": "DELETED", "object": node});
                    let _ = self.watch(&cluster).send(format!("{event}\n").into());
                }
                node
            }
            (method, path) => panic!("{method} {path}"),
        };
        let body = Full::new(Bytes::from(answer.to_string())).boxed_unsync();
        Response::builder().header("content-type", "application/json").body(body).unwrap()
    }

    fn watch(&self, cluster: &str) -> broadcast::Sender<Bytes> {
        let mut watches = self.watches.lock();
        watches.entry(cluster.to_owned()).or_insert_with(|| broadcast::channel(64).0).clone()
    }

    fn count(&self, cluster: &str) -> Call {
        let mut calls = self.calls.lock();
        let (now, most) = calls.entry(cluster.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Call(self.clone(), cluster.to_owned())
    }
}

fn node(cluster: &str, number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("node-{number}"), "uid": format!("{cluster}-{number}"), "resourceVersion": "1"},
        // Already cordoned, because the responses never change.
        "spec": {"providerID": format!("test://{cluster}/{number}"), "unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn list(version: &str, kind: &str, items: Vec<Value>) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"resourceVersion": "1"}, "items": items})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_black_holed_cluster_among_200_does_not_affect_the_others() {
    let (world, apis) = (World::start().await, Apis::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(apis.clone().serve(listener));
    make_kinds(&world).await;
    let others: Vec<String> = (0..OTHERS).map(|number| format!("c{number}")).collect();
    let mut machines = Vec::new();
    for name in others.iter().map(String::as_str).chain([BLACK_HOLE]) {
        make_cluster(&world, name).await;
        let kubeconfig = kubeconfig(&format!("http://{address}/{name}"), None, "token");
        set_kubeconfig(&world, name, json!({"cluster.x-k8s.io/cluster-name": name}), &kubeconfig).await;
        for number in 0..if name == BLACK_HOLE { DARK_MACHINES } else { 1 } {
            let machine = format!("{name}-{number}");
            make_machine(&world, name, &machine, &format!("test://{name}/{number}")).await;
            machines.push(machine);
        }
    }
    let api = world.api(CORE, "Machine", "default");
    let left = async || -> Vec<Value> {
        api.list(&Default::default()).await.unwrap().items.into_iter().map(|machine| json!(machine)).collect()
    };
    drover_testkit::eventually(async || {
        let mut left = left().await;
        left.retain(|machine| !machine["status"]["nodeRef"]["name"].is_string());
        left.is_empty().then_some(()).ok_or(format!(
            "{} without a Node, such as {}",
            left.len(),
            json!(left.first())
        ))
    })
    .await;

    // From now on it does not respond. All Machines are deleted, its own first.
    apis.dark.store(true, Ordering::SeqCst);
    apis.calls.lock().clear();
    machines.reverse();
    for machine in &machines {
        api.delete(machine, &DeleteParams::default()).await.unwrap();
    }
    drover_testkit::eventually(async || {
        let mut left = left().await;
        left.retain(|machine| machine["spec"]["clusterName"] != BLACK_HOLE);
        left.is_empty().then_some(()).ok_or(format!(
            "{} are left, such as {}",
            left.len(),
            json!(left.first())
        ))
    })
    .await;

    // The others were drained while it was waiting, and it never exceeded its limit.
    assert_eq!(left().await.len(), DARK_MACHINES);
    let calls = apis.calls.lock().clone();
    let (_, most) = calls[BLACK_HOLE];
    // Besides the limited calls there are the health probe and the list of the watch of Nodes.
    assert!((1..=MAX_CALLS + 2).contains(&most), "{most} concurrent calls and probes to the silent cluster");
    for other in &others {
        assert!(calls.contains_key(other), "{other} was not drained");
    }
    server.abort();
    world.stop().await;
}
