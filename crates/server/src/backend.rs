//! The Kubernetes API of the management plane: in this process, or external.

use std::sync::Arc;

use drover_access::downstream::{RequestBody, boxed};
use drover_apiserver::UserInfo;
use drover_apiserver::embedded::Embedded;
use drover_apiserver::status::Status;
use drover_apiserver::storage::Storage;
use drover_https::Incoming;
use http::request::Parts;
use http::{Request, Response};
use tower::ServiceExt as _;

use crate::external::External;

/// The API of a management plane that is about to start.
pub enum Backing {
    /// The embedded API on this storage.
    Embedded(Arc<dyn Storage>),
    External(External),
}

/// The API of a running management plane. Clones share it.
#[derive(Clone)]
pub enum Backend {
    Embedded(Arc<Embedded>),
    External(External),
}

impl Backend {
    /// Answers a request for the API.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<RequestBody> {
        match self {
            Self::Embedded(embedded) => match embedded.service().oneshot(request).await {
                Ok(response) => response.map(boxed),
                Err(never) => match never {},
            },
            Self::External(external) => external.answer(request).await,
        }
    }

    /// Registers the metrics of the API.
    pub(crate) fn register_metrics(&self, registry: &mut prometheus_client::registry::Registry) {
        match self {
            Self::Embedded(embedded) => embedded.register_metrics(registry),
            Self::External(external) => external.requests().register(registry),
        }
    }

    /// The paths of the API, as [patterns](drover_apiserver::http::pattern).
    pub fn paths(&self) -> Vec<&'static str> {
        match self {
            Self::Embedded(embedded) => embedded.service().paths(),
            Self::External(_) => External::paths(),
        }
    }

    /// The caller of a request for another path, authenticated as the API would.
    pub async fn authenticate(&self, request: &Parts) -> Result<UserInfo, Status> {
        match self {
            Self::Embedded(embedded) => embedded.authenticate(request).await,
            Self::External(external) => external.authenticate(request).await,
        }
    }

    /// The caller of a request for another path, if the API's RBAC permits it.
    pub async fn admit(&self, request: &Parts) -> Result<UserInfo, Status> {
        match self {
            Self::Embedded(embedded) => embedded.service().admit(request).await,
            Self::External(external) => external.admit(request).await,
        }
    }

    /// Makes `/readyz` fail and ends watches, if the API is embedded.
    pub fn shut_down(&self) {
        if let Self::Embedded(embedded) = self {
            embedded.shut_down();
        }
    }
}
