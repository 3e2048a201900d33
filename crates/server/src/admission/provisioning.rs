//! Clusters keep the fields their pools were made with; drivers and credentials stay while someone needs them, and so do
//! the machines that hold a cluster's state.

use std::fmt::Debug;
use std::sync::Weak;
use std::time::Duration;

use drover_api::capi::v1beta2::{Machine, MachineDeployment};
use drover_api::labels::{capi as capi_labels, rke as roles};
use drover_api::management::v3::{self as management, NodeDriver};
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use drover_api::secret_types::MACHINE_PLAN;
use drover_apiserver::UserInfo;
use drover_apiserver::admission::{Admission, AdmissionRequest, Operation};
use drover_apiserver::embedded::Embedded;
use drover_apiserver::registry::Resource;
use drover_apiserver::status::Status;
use drover_provisioning::admission as rules;
use drover_runtime::ObjectKey;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A look at other objects may take this long.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// Types of Secrets that can be cloud credentials.
const CREDENTIAL_TYPES: [&str; 2] = ["Opaque", "provisioning.cattle.io/cloud-credential"];

/// An update of a Cluster that leaves out `dynamicSchemaSpec` does not take it away.
pub(super) struct RecordedSchemas;

impl Admission for RecordedSchemas {
    fn name(&self) -> &str {
        "recorded-schemas"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation == Operation::Update && subresource.is_empty() && is::<Cluster>(resource)
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        if let Some(old) = request.old {
            rules::keep_schemas(object, old);
        }
        Box::pin(async { Ok(()) })
    }
}

/// Clusters of the management group stand for provisioning Clusters, which make them.
pub(super) struct Twins;

impl Admission for Twins {
    fn name(&self) -> &str {
        "twins"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation == Operation::Create && subresource.is_empty() && is::<management::Cluster>(resource)
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        _: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        request.warnings.add(
            "stored, but nothing acts on a management Cluster that people make: make a Cluster of provisioning.cattle.io/v1",
        );
        Box::pin(async { Ok(()) })
    }
}

/// What an agent writes to its plan secret is what it has to say: the data. The rest is how the planner knows the machine.
pub(super) struct PlanSecrets;

impl Admission for PlanSecrets {
    fn name(&self) -> &str {
        "plan-secrets"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation == Operation::Update && subresource.is_empty() && is::<Secret>(resource)
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let account = format!("system:serviceaccount:{}:{}", request.namespace, request.name);
        if let Some(old) =
            request.old.filter(|old| old["type"] == MACHINE_PLAN && request.user.name == account)
        {
            rules::keep_marks(object, old);
        }
        Box::pin(async { Ok(()) })
    }
}

/// Refuses to take away what is in use, a cluster's servers among it. It asks the API itself: a cache might not know the newest
/// user yet.
pub(super) struct InUse {
    /// Weak, because the API holds its hooks.
    embedded: Weak<Embedded>,
}

impl InUse {
    pub(super) fn new(embedded: Weak<Embedded>) -> Self {
        Self { embedded }
    }

    /// Why the write is refused.
    async fn complaint(
        &self,
        request: &AdmissionRequest<'_>,
        object: Option<&Value>,
    ) -> Result<Option<String>, Status> {
        let (Some(old), Some(embedded)) = (request.old, self.embedded.upgrade()) else { return Ok(None) };
        if is::<Namespace>(request.resource) {
            let (client, name) = (client(&embedded), request.name);
            let (clusters, machines) = (within(&client, name).await?, within(&client, name).await?);
            return Ok(rules::namespace_in_use(&clusters, &machines));
        }
        if is::<MachineDeployment>(request.resource) {
            return scale_refused(&embedded, request, old, object).await;
        }
        let client = || client(&embedded);
        if is::<NodeDriver>(request.resource) {
            let (Some(old), new) = (typed::<NodeDriver>(old), object.and_then(typed)) else {
                return Ok(None);
            };
            if new.is_some_and(|new| !rules::ends_driver(&old, &new)) {
                return Ok(None);
            }
            let client = client();
            let (clusters, machines) = (all(&client).await?, all::<Machine>(&client).await?);
            return Ok(rules::driver_in_use(&old, &clusters, &machines));
        }
        if !old["type"].as_str().is_some_and(|type_| CREDENTIAL_TYPES.contains(&type_)) {
            return Ok(None);
        }
        let key = ObjectKey::new(request.namespace, request.name);
        Ok(rules::credential_in_use(&key, &all(&client()).await?))
    }
}

impl Admission for InUse {
    fn name(&self) -> &str {
        "in-use"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        match operation {
            Operation::Create => false,
            Operation::Update if is::<MachineDeployment>(resource) => matches!(subresource, "" | "scale"),
            Operation::Update => subresource.is_empty() && is::<NodeDriver>(resource),
            Operation::Delete => {
                is::<NodeDriver>(resource) || is::<Secret>(resource) || is::<Namespace>(resource)
            }
        }
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            match self.complaint(request, object).await? {
                None => Ok(()),
                Some(why) => Err(Status::forbidden(request.resource.group_resource(), request.name, &why)),
            }
        })
    }
}

/// Why a pool of servers is not scaled: its Cluster would refuse the same quantity.
async fn scale_refused(
    embedded: &Embedded,
    request: &AdmissionRequest<'_>,
    old: &Value,
    new: Option<&Value>,
) -> Result<Option<String>, Status> {
    let Some(new) = new else { return Ok(None) };
    let replicas = |object: &Value| object["spec"]["replicas"].as_i64();
    let marks = &new["spec"]["template"]["metadata"]["labels"];
    let is_server = [roles::ETCD_ROLE, roles::CONTROL_PLANE_ROLE].iter().any(|role| marks[role] == "true");
    let (Some(wanted), true) = (replicas(new).filter(|_| replicas(new) != replicas(old)), is_server) else {
        return Ok(None);
    };
    let name = new["spec"]["clusterName"].as_str().unwrap_or_default();
    let (client, namespace) = (client(embedded), request.namespace);
    let cluster: Api<Cluster> = Api::namespaced(client.clone(), namespace);
    let Some(cluster) = look("clusters", cluster.get_opt(name)).await? else { return Ok(None) };
    let plane: Api<RKEControlPlane> = Api::namespaced(client.clone(), namespace);
    let plane = look("rkecontrolplanes", plane.get_opt(name)).await?;
    let machines: Api<Machine> = Api::namespaced(client, namespace);
    let of_cluster = ListParams::default().labels(&format!("{}={name}", capi_labels::CLUSTER_NAME));
    let machines = look("machines", machines.list(&of_cluster)).await?.items;
    let wanted = i32::try_from(wanted).unwrap_or(i32::MAX);
    Ok(rules::scale_refused(&cluster, request.name, wanted, plane.as_ref(), &machines))
}

fn client(embedded: &Embedded) -> Client {
    let user = UserInfo::system_masters("system:drover:admission");
    drover_runtime::in_process_client(embedded.service(), user)
}

fn is<K: kube::Resource<DynamicType = ()>>(resource: &Resource) -> bool {
    resource.def.group == K::group(&()) && resource.def.kind == K::kind(&())
}

fn typed<K: DeserializeOwned>(object: &Value) -> Option<K> {
    serde_json::from_value(object.clone()).ok()
}

/// Every object of a kind, as it is stored now.
async fn all<K>(client: &Client) -> Result<Vec<K>, Status>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    Ok(look(&K::plural(&()), api.list(&ListParams::default())).await?.items)
}

/// The same of one namespace.
async fn within<K>(client: &Client, namespace: &str) -> Result<Vec<K>, Status>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    Ok(look(&K::plural(&()), api.list(&ListParams::default())).await?.items)
}

/// What is stored now. Nothing is let through because it could not be looked at.
async fn look<T>(what: &str, asked: impl Future<Output = kube::Result<T>>) -> Result<T, Status> {
    match tokio::time::timeout(LOOK_LIMIT, asked).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => {
            Err(Status::internal(format!("who needs it is not known, {what} cannot be read: {error}")))
        }
        Err(_) => Err(Status::timeout(format!("who needs it is not known, {what} were not read in time"), 1)),
    }
}
