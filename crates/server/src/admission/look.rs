//! How hooks look at other objects: at the API itself, since a cache might not know the newest yet.

use std::fmt::Debug;
use std::sync::Weak;
use std::time::Duration;

use drover_apiserver::UserInfo;
use drover_apiserver::admission::AdmissionRequest;
use drover_apiserver::embedded::Embedded;
use drover_apiserver::registry::Resource;
use drover_apiserver::status::Status;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;

/// A look at other objects may take this long.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// What is around the object that is written. Weak, because the API holds its hooks.
#[derive(Clone)]
pub(super) struct Around(pub(super) Weak<Embedded>);

impl Around {
    /// None when the API is gone.
    pub(super) fn client(&self) -> Option<Client> {
        let user = UserInfo::system_masters("system:drover:admission");
        Some(drover_runtime::in_process_client(self.0.upgrade()?.service(), user))
    }
}

pub(super) fn is<K: kube::Resource<DynamicType = ()>>(resource: &Resource) -> bool {
    resource.def.group == K::group(&()) && resource.def.kind == K::kind(&())
}

/// Every object of a kind, as it is stored now.
pub(super) async fn all<K>(client: &Client) -> Result<Vec<K>, Status>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    Ok(look(&K::plural(&()), api.list(&ListParams::default())).await?.items)
}

/// The same of one namespace.
pub(super) async fn within<K>(client: &Client, namespace: &str) -> Result<Vec<K>, Status>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    Ok(look(&K::plural(&()), api.list(&ListParams::default())).await?.items)
}

/// What is stored now. Nothing is let through because it could not be looked at.
pub(super) async fn look<T>(what: &str, asked: impl Future<Output = kube::Result<T>>) -> Result<T, Status> {
    match tokio::time::timeout(LOOK_LIMIT, asked).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => {
            Err(Status::internal(format!("who needs it is not known, {what} cannot be read: {error}")))
        }
        Err(_) => Err(Status::timeout(format!("who needs it is not known, {what} were not read in time"), 1)),
    }
}

/// Refuses the write if there is a reason to.
pub(super) fn refuse(request: &AdmissionRequest<'_>, why: Option<String>) -> Result<(), Status> {
    match why {
        None => Ok(()),
        Some(why) => Err(Status::forbidden(request.resource.group_resource(), request.name, &why)),
    }
}
