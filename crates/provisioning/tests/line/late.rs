//! Controllers that hear of everything late must not act on what they themselves have changed since.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drover_apiserver::http::ApiService;
use drover_apiserver::identity::UserInfo;
use drover_runtime::in_process_client;
use drover_testkit::demo;
use drover_testkit::objects::condition;
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::client::Body;
use tokio::sync::{mpsc, oneshot};
use tower::{Service, ServiceExt};

use crate::players::play;
use crate::removal::deleted_between_managers;
use crate::world::{World, until};

const MACHINES: &str = "/apis/rke-machine.cattle.io/v1/namespaces/default/localmachines/";
const LATE: Duration = Duration::from_millis(300);

/// A note of a machine's first attempt, which waits to be let through.
struct Held {
    machine: String,
    go_on: oneshot::Sender<()>,
}

/// The API, with watches of some paths that bring everything late, one after the other, and notes of attempts that wait.
fn late(
    service: ApiService,
    paths: &'static str,
    held: mpsc::Sender<Held>,
) -> impl Service<
    Request<Body>,
    Response = Response<UnsyncBoxBody<Bytes, Infallible>>,
    Error = Infallible,
    Future: Send,
> + Send
+ 'static {
    let held = Arc::new(held);
    tower::service_fn(move |request: Request<Body>| {
        let (service, held) = (service.clone(), held.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let machine =
                parts.uri.path().strip_prefix(MACHINES).and_then(|rest| rest.strip_suffix("/status"));
            if let (&Method::PATCH, Some(machine)) = (&parts.method, machine)
                && String::from_utf8_lossy(&body).contains("\"attempt\":1")
            {
                let (go_on, wait) = oneshot::channel();
                // Only the first one is of interest; nobody listens for more.
                if held.try_send(Held { machine: machine.to_owned(), go_on }).is_ok() {
                    let _ = wait.await;
                }
            }
            let watch = parts.uri.query().is_some_and(|query| query.contains("watch="));
            let slow = watch && parts.uri.path().contains(paths);
            let answer = service.oneshot(Request::from_parts(parts, Body::from(body.to_vec()))).await?;
            Ok(answer.map(|body| {
                let frames = BodyStream::new(body).then(move |frame| async move {
                    if slow {
                        tokio::time::sleep(LATE).await;
                    }
                    frame
                });
                StreamBody::new(frames).boxed_unsync()
            }))
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_deleted_while_its_first_attempt_is_noted_is_removed_and_not_forgotten() {
    let world = World::start().await;
    let (sender, mut notes) = mpsc::channel(1);
    let client = in_process_client(
        late(world.service(), "/localmachines", sender),
        UserInfo::system_masters("manager"),
    );
    let _manager = world.manager_with(client);
    demo::make(&world.objects).await;
    let held = notes.recv().await.unwrap();
    notes.close();
    world.objects.delete("rke-machine.cattle.io/v1", "LocalMachine", "default", &held.machine).await;
    held.go_on.send(()).unwrap();
    // Nobody runs Jobs here, so the Job that removes what may have been made stays to be seen.
    until("a Job removes what the first one may have made", || async {
        let jobs = world.objects.list("batch/v1", "Job").await;
        jobs.iter().any(|job| {
            let labels = &job["metadata"]["labels"];
            labels["rke.cattle.io/infra-remove"] == "true"
                && labels["rke.cattle.io/infra-machine-name"] == held.machine.as_str()
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_34_a_cluster_deleted_before_its_objects_are_heard_of_takes_them_along() {
    let world = deleted_between_managers().await;
    let objects = &world.objects;
    // The next one hears of Machines and of all else of Cluster API only when it is long at work.
    let (sender, _) = mpsc::channel(1);
    let service = late(world.service(), "/cluster.x-k8s.io/", sender);
    let _manager = world.manager_with(in_process_client(service, UserInfo::system_masters("manager")));
    until("it names a machine", || async {
        let (_, message) = condition(&demo::cluster(objects).await, "Removed");
        message.contains("waiting for machine [demo-")
    })
    .await;
    let _players = play(&world);
    demo::remove(objects, "before its objects are heard of").await;
}
