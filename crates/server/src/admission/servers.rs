//! Protects the last etcd machine of a cluster from users. Controllers are not restricted.

use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment, MachineSet};
use drover_api::labels::{capi as capi_labels, rke as roles};
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use drover_apiserver::UserInfo;
use drover_apiserver::admission::{Admission, AdmissionRequest, Operation};
use drover_apiserver::resources::Resource;
use drover_apiserver::status::Status;
use drover_provisioning::admission as rules;
use futures::future::BoxFuture;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::Value;

use super::reader::{ApiReader, is, read, reject};

/// Rejects requests of users that would remove a cluster's last etcd machine, or create a server that cannot join.
pub(super) struct Servers(pub(super) ApiReader);

impl Servers {
    /// Why the write is rejected.
    async fn complaint(
        &self,
        request: &AdmissionRequest<'_>,
        object: Option<&Value>,
    ) -> Result<Option<String>, Status> {
        let (Some(old), Some(client), true) = (request.old, self.0.client(), is_person(request.user)) else {
            return Ok(None);
        };
        let replicas = |object: &Value| object["spec"]["replicas"].as_i64();
        match object {
            None => self.deletion(&client, request, old).await,
            Some(new) if !is_server(old) || replicas(new) == replicas(old) => Ok(None),
            Some(new) => {
                let Some(objects) = ClusterObjects::of(&client, request.namespace, old).await? else {
                    return Ok(None);
                };
                let wanted = i32::try_from(replicas(new).unwrap_or(1)).unwrap_or(i32::MAX);
                let name = match is::<MachineSet>(request.resource) {
                    true => label(old, capi_labels::DEPLOYMENT_NAME),
                    false => request.name,
                };
                let (plane, machines) = (objects.plane.as_ref(), &objects.machines);
                Ok(rules::scale_refused(&objects.cluster, name, wanted, plane, machines))
            }
        }
    }

    async fn deletion(
        &self,
        client: &Client,
        request: &AdmissionRequest<'_>,
        old: &Value,
    ) -> Result<Option<String>, Status> {
        let resource = request.resource;
        if is::<CapiCluster>(resource) {
            let clusters: Api<Cluster> = Api::namespaced(client.clone(), request.namespace);
            let cluster = read("clusters", clusters.get_opt(request.name)).await?;
            return Ok(cluster.and_then(|cluster| rules::would_be_recreated(&cluster)));
        }
        if !is_server(old) {
            return Ok(None);
        }
        let Some(objects) = ClusterObjects::of(client, request.namespace, old).await? else {
            return Ok(None);
        };
        let is_removed = |machine: &Machine| {
            let label = |key: &str| machine.metadata.labels.as_ref().and_then(|labels| labels.get(key));
            let by = |key: &str| label(key).is_some_and(|name| name == request.name);
            match () {
                () if is::<MachineDeployment>(resource) => by(capi_labels::DEPLOYMENT_NAME),
                () if is::<MachineSet>(resource) => by(capi_labels::SET_NAME),
                () => machine.metadata.name.as_deref() == Some(request.name),
            }
        };
        Ok(rules::last_etcd(&objects.cluster, objects.plane.as_ref(), &objects.machines, is_removed))
    }
}

impl Admission for Servers {
    fn name(&self) -> &str {
        "servers"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        let makes_machines = is::<MachineDeployment>(resource) || is::<MachineSet>(resource);
        match operation {
            Operation::Create => false,
            Operation::Update => makes_machines && matches!(subresource, "" | "scale"),
            Operation::Delete => makes_machines || is::<Machine>(resource) || is::<CapiCluster>(resource),
        }
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { reject(request, self.complaint(request, object).await?) })
    }
}

/// Components of the server have user names of their own kind. Service accounts are users' programs, and a user's
/// client certificate may carry the name of a component.
fn is_person(user: &UserInfo) -> bool {
    let name = user.name.as_str();
    !name.starts_with("system:") || name.starts_with("system:serviceaccount:") || name == "system:admin"
}

/// Whether the machines of this object run etcd or the control plane.
fn is_server(object: &Value) -> bool {
    let own = &object["metadata"]["labels"];
    let made = &object["spec"]["template"]["metadata"]["labels"];
    [roles::ETCD_ROLE, roles::CONTROL_PLANE_ROLE]
        .iter()
        .any(|role| own[role] == "true" || made[role] == "true")
}

fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["labels"][key].as_str().unwrap_or_default()
}

/// The objects of a provisioned cluster, as they are stored.
struct ClusterObjects {
    cluster: Cluster,
    plane: Option<RKEControlPlane>,
    machines: Vec<Machine>,
}

impl ClusterObjects {
    /// None if the object does not belong to a provisioned cluster.
    async fn of(client: &Client, namespace: &str, part: &Value) -> Result<Option<Self>, Status> {
        let name = part["spec"]["clusterName"].as_str().unwrap_or_default();
        if name.is_empty() {
            return Ok(None);
        }
        let clusters: Api<Cluster> = Api::namespaced(client.clone(), namespace);
        let Some(cluster) = read("clusters", clusters.get_opt(name)).await? else { return Ok(None) };
        let planes: Api<RKEControlPlane> = Api::namespaced(client.clone(), namespace);
        let plane = read("rkecontrolplanes", planes.get_opt(name)).await?;
        let machines: Api<Machine> = Api::namespaced(client.clone(), namespace);
        let of_cluster = ListParams::default().labels(&format!("{}={name}", capi_labels::CLUSTER_NAME));
        let machines = read("machines", machines.list(&of_cluster)).await?.items;
        Ok(Some(Self { cluster, plane, machines }))
    }
}
