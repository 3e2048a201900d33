//! `/k8s/clusters/<id>/…`: a cluster's API through Drover.

use std::sync::Arc;

use bytes::Bytes;
use drover_access_api::ManagementIds;
use drover_api::annotations::provisioning as annotations;
use drover_api::management::v3::Cluster;
use drover_apiserver::identity::{Attributes, Authorizer, UserInfo};
use drover_apiserver::status::{GroupName, Status};
use drover_runtime::{Cache, ObjectKey};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use tower::BoxError;

use crate::downstream::{Downstreams, RequestBody, Unavailable, boxed};
use crate::hop;
use crate::tokens::OWNER_GROUP_PREFIX;

/// The path prefix of all clusters.
pub const PREFIX: &str = "/k8s/clusters/";

const CLUSTERS: GroupName<'static> = GroupName { group: "management.cattle.io", name: "clusters" };

/// Serves requests below [`PREFIX`]. Clones share it.
#[derive(Clone)]
pub struct Proxy {
    clusters: Cache<Cluster>,
    ids: ManagementIds,
    downstreams: Downstreams,
    authorizer: Option<Arc<dyn Authorizer>>,
}

/// The cluster id, and the path in its API.
pub fn split_path(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix(PREFIX)?;
    let (id, path) = rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash));
    (!id.is_empty()).then_some((id, path))
}

impl Proxy {
    pub fn new(clusters: Cache<Cluster>, ids: ManagementIds, downstreams: Downstreams) -> Self {
        Self { clusters, ids, downstreams, authorizer: None }
    }

    /// Also allows users to whom `authorizer` grants every verb on the cluster's `management.cattle.io/v3` object.
    pub fn authorized_by(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.authorizer = Some(authorizer);
        self
    }

    async fn is_allowed(&self, user: &UserInfo, id: &str) -> Result<bool, Status> {
        let cluster = self.clusters.get(&ObjectKey::cluster(id));
        if may_use(user, cluster.as_deref(), self.ids.key_of(id).as_ref()) {
            return Ok(true);
        }
        let Some(authorizer) = &self.authorizer else { return Ok(false) };
        let attributes = Attributes {
            user: user.clone(),
            verb: "*".into(),
            group: CLUSTERS.group.into(),
            version: "v3".into(),
            resource: CLUSTERS.name.into(),
            name: id.to_owned(),
            resource_request: true,
            ..Attributes::default()
        };
        Ok(authorizer.authorize(&attributes).await?.allowed)
    }

    /// Answers an authenticated caller. Nothing is sent through the tunnel before the caller is authorized.
    pub async fn serve(&self, user: &UserInfo, request: Request<RequestBody>) -> Response<RequestBody> {
        match self.forward(user, request).await {
            Ok(response) => response,
            Err(status) => error_response(&status),
        }
    }

    async fn forward(
        &self,
        user: &UserInfo,
        mut request: Request<RequestBody>,
    ) -> Result<Response<RequestBody>, Status> {
        let (id, path) = split_path(request.uri().path()).ok_or_else(Status::not_found_path)?;
        let (id, path) = (id.to_owned(), path.to_owned());
        if !self.is_allowed(user, &id).await? {
            let why = format!("User {:?} cannot reach cluster {id:?}", user.name);
            return Err(Status::forbidden(CLUSTERS, &id, &why));
        }
        if request.headers().keys().any(is_impersonation) {
            // Without this check, the request would use the caller's own permissions.
            let why = "impersonation (Impersonate-User, kubectl --as) is not supported for clusters";
            return Err(Status::forbidden(CLUSTERS, &id, why));
        }
        let downstream = self.downstreams.get(&id).map_err(unavailable)?;

        let target = match request.uri().query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        *request.uri_mut() = target.parse().map_err(|e| Status::bad_request(format!("bad path: {e}")))?;
        let upgrade = hop::wants_upgrade(request.headers());
        let caller = upgrade.then(|| hyper::upgrade::on(&mut request));
        clean(request.headers_mut(), upgrade);
        let mut response = downstream.send(request).await.map_err(unavailable)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(caller) = caller
        {
            let callee = hyper::upgrade::on(&mut response);
            tokio::spawn(hop::join(caller, callee));
        } else {
            clean(response.headers_mut(), false);
        }
        Ok(response.map(|body: Incoming| body.map_err(BoxError::from).boxed_unsync()))
    }
}

/// Permits administrators of the management plane and the owner of this cluster. `key` is the provisioning Cluster.
fn may_use(user: &UserInfo, cluster: Option<&Cluster>, key: Option<&ObjectKey>) -> bool {
    if user.in_group("system:masters") {
        return true;
    }
    let (Some(cluster), Some(ObjectKey { namespace, name })) = (cluster, key) else { return false };
    let administrated =
        cluster.metadata.annotations.as_ref().and_then(|all| all.get(annotations::ADMINISTRATED));
    administrated.is_some_and(|value| value == "true")
        && user.in_group(&format!("{OWNER_GROUP_PREFIX}{namespace}/{name}"))
}

fn unavailable(error: Unavailable) -> Status {
    match &error {
        Unavailable::Unknown(id) => Status::not_found(CLUSTERS, id),
        Unavailable::Timeout(_) => Status::timeout(error.to_string(), 1),
        Unavailable::Request { source, .. } => {
            Status::service_unavailable(format!("{error}: {}", root(source.as_ref())))
        }
        _ => Status::service_unavailable(error.to_string()),
    }
}

/// The innermost cause, which is the most specific.
pub fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

/// Removes hop-by-hop headers and the caller's credentials.
fn clean(headers: &mut HeaderMap, upgrade: bool) {
    hop::strip(headers, upgrade);
    let impersonation: Vec<_> = headers.keys().filter(|name| is_impersonation(name)).cloned().collect();
    for name in impersonation {
        headers.remove(name);
    }
}

fn is_impersonation(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate-")
}

/// Converts a Status to a response.
pub fn error_response(status: &Status) -> Response<RequestBody> {
    let body: UnsyncBoxBody<Bytes, BoxError> = boxed(http_body_util::Full::new(status.to_bytes()));
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_into_cluster_and_rest() {
        assert_eq!(split_path("/k8s/clusters/c-m-1/api/v1/nodes"), Some(("c-m-1", "/api/v1/nodes")));
        assert_eq!(split_path("/k8s/clusters/c-m-1"), Some(("c-m-1", "/")));
        assert_eq!(split_path("/k8s/clusters/"), None);
        assert_eq!(split_path("/api/v1"), None);
    }

    fn cluster() -> Cluster {
        let mut cluster = Cluster::new("c-m-1", Default::default());
        // Set by an annotation; not the namespace of the provisioning Cluster.
        cluster.spec.fleet_workspace_name = "workspace".into();
        cluster.metadata.annotations =
            Some([(annotations::ADMINISTRATED.to_owned(), "true".to_owned())].into());
        cluster
    }

    /// access#22: a user without permissions for the cluster does not reach the tunnel.
    #[test]
    fn access_check_22_only_admins_and_the_clusters_own_owner_may_use_it() {
        let (mut demo, key) = (cluster(), ObjectKey::new("fleet-default", "demo"));
        let owner = |group: &str| UserInfo { groups: vec![group.into()], ..UserInfo::default() };
        assert!(may_use(&UserInfo::system_masters("a"), None, None));
        assert!(may_use(&owner("drover:cluster-owner:fleet-default/demo"), Some(&demo), Some(&key)));
        assert!(!may_use(&owner("drover:cluster-owner:fleet-default/other"), Some(&demo), Some(&key)));
        assert!(!may_use(&owner("drover:cluster-owner:workspace/demo"), Some(&demo), Some(&key)));
        assert!(!may_use(&owner("drover:cluster-owner:fleet-default/demo"), None, Some(&key)));
        assert!(!may_use(&owner("drover:cluster-owner:fleet-default/demo"), Some(&demo), None));
        assert!(!may_use(&UserInfo::anonymous(), Some(&demo), Some(&key)));
        demo.metadata.annotations = None;
        assert!(!may_use(&owner("drover:cluster-owner:fleet-default/demo"), Some(&demo), Some(&key)));
    }

    #[test]
    fn credentials_impersonation_and_hop_headers_are_removed() {
        let mut headers = HeaderMap::new();
        for name in
            ["connection", "upgrade", "te", "cookie", "impersonate-user", "impersonate-extra-foo", "accept"]
        {
            headers.insert(HeaderName::from_static(name), "x".parse().unwrap());
        }
        clean(&mut headers, false);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
