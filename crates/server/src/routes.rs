//! The paths of the HTTPS port that do not belong to the Kubernetes API.
//!
//! Requests are dispatched by this table; all other paths belong to the API. `docs/security.md` documents for each
//! path who may call it and how it is limited, and a test compares the two.

use drover_apiserver::http::pattern;
use http::Method;

/// The handler of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Tunnel,
    Registration,
    CaCerts,
    CaCertsSetting,
    Ping,
    InstallScript,
    Asset,
    Images,
    Import,
    Cluster,
    Metrics,
}

/// A path, or all paths of a pattern.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub path: &'static str,
    /// The allowed methods; others get 405. If empty, the handler decides.
    pub methods: &'static [Method],
    pub(crate) endpoint: Endpoint,
}

const READ: &[Method] = &[Method::GET, Method::HEAD];
/// Not HEAD, which would register a machine and discard its credential.
const REGISTER: &[Method] = &[Method::GET, Method::POST];
const ALL: &[Method] = &[];

/// Every path that does not belong to the API.
pub const ROUTES: &[Route] = &[
    Route { path: "/v3/connect", methods: &[Method::GET], endpoint: Endpoint::Tunnel },
    Route { path: "/v3/connect/register", methods: &[Method::GET], endpoint: Endpoint::Tunnel },
    Route { path: "/v3/connect/agent", methods: REGISTER, endpoint: Endpoint::Registration },
    Route { path: "/cacerts", methods: READ, endpoint: Endpoint::CaCerts },
    Route { path: "/v3/settings/cacerts", methods: READ, endpoint: Endpoint::CaCertsSetting },
    Route { path: "/ping", methods: READ, endpoint: Endpoint::Ping },
    Route { path: "/system-agent-install.sh", methods: READ, endpoint: Endpoint::InstallScript },
    Route { path: "/assets/...", methods: READ, endpoint: Endpoint::Asset },
    Route { path: "/v2", methods: READ, endpoint: Endpoint::Images },
    Route { path: "/v2/...", methods: READ, endpoint: Endpoint::Images },
    Route { path: "/v3/import/...", methods: READ, endpoint: Endpoint::Import },
    Route { path: "/k8s/clusters/...", methods: ALL, endpoint: Endpoint::Cluster },
    Route { path: "/metrics", methods: READ, endpoint: Endpoint::Metrics },
];

/// The route of a path; none if the path belongs to the API.
pub(crate) fn find(path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| pattern::matches(route.path, path))
}

impl Route {
    pub(crate) fn accepts(&self, method: &Method) -> bool {
        self.methods.is_empty() || self.methods.contains(method)
    }

    /// The value of `Allow`.
    pub(crate) fn allowed(&self) -> String {
        self.methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_endpoint_and_other_paths_belong_to_the_api() {
        for (path, endpoint) in [
            ("/v3/connect", Endpoint::Tunnel),
            ("/v3/connect/agent", Endpoint::Registration),
            ("/v2/", Endpoint::Images),
            ("/v2/rancher/x/manifests/v1", Endpoint::Images),
            ("/assets/drover-agent-amd64", Endpoint::Asset),
            ("/k8s/clusters/c-m-1", Endpoint::Cluster),
            ("/k8s/clusters/c-m-1/api/v1/nodes", Endpoint::Cluster),
        ] {
            assert_eq!(find(path).map(|route| route.endpoint), Some(endpoint), "{path}");
        }
        for path in ["/", "/api/v1/secrets", "/v3", "/v3/connect/other", "/assets", "/pingx", "/k8s/clusters"]
        {
            assert!(find(path).is_none(), "{path}");
        }
    }
}
