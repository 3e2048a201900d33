//! How admission hooks read other objects: from the API itself, because a cache may be behind.

use std::fmt::Debug;
use std::sync::Weak;
use std::time::Duration;

use drover_apiserver::UserInfo;
use drover_apiserver::admission::AdmissionRequest;
use drover_apiserver::embedded::Embedded;
use drover_apiserver::resources::Resource;
use drover_apiserver::status::Status;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;

/// Time limit for reading other objects.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Reads from the API that runs the hooks. The reference is weak, because the API owns its hooks.
#[derive(Clone)]
pub(super) struct ApiReader(pub(super) Weak<Embedded>);

impl ApiReader {
    /// None if the API has stopped.
    pub(super) fn client(&self) -> Option<Client> {
        let user = UserInfo::system_masters("system:drover:admission");
        Some(drover_runtime::in_process_client(self.0.upgrade()?.service(), user))
    }
}

pub(super) fn is<K: kube::Resource<DynamicType = ()>>(resource: &Resource) -> bool {
    resource.def.group == K::group(&()) && resource.def.kind == K::kind(&())
}

/// Lists a kind in all namespaces.
pub(super) async fn list_all<K>(client: &Client) -> Result<Vec<K>, Status>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    Ok(read(&K::plural(&()), api.list(&ListParams::default())).await?.items)
}

/// Lists a kind in one namespace.
pub(super) async fn list_in<K>(client: &Client, namespace: &str) -> Result<Vec<K>, Status>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    Ok(read(&K::plural(&()), api.list(&ListParams::default())).await?.items)
}

/// Reads from the API. If that fails, the write is rejected.
pub(super) async fn read<T>(what: &str, asked: impl Future<Output = kube::Result<T>>) -> Result<T, Status> {
    match tokio::time::timeout(READ_LIMIT, asked).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(Status::internal(format!(
            "cannot check whether the object is in use: failed to read {what}: {error}"
        ))),
        Err(_) => Err(Status::timeout(
            format!("cannot check whether the object is in use: timed out reading {what}"),
            1,
        )),
    }
}

/// Rejects the write if there is a reason.
pub(super) fn reject(request: &AdmissionRequest<'_>, why: Option<String>) -> Result<(), Status> {
    match why {
        None => Ok(()),
        Some(why) => Err(Status::forbidden(request.resource.group_resource(), request.name, &why)),
    }
}
