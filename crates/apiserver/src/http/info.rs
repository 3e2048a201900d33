//! Parses requests: verb, group, version, namespace, resource, name, subresource.

use http::Method;
use percent_encoding::percent_decode_str;

use super::query::Query;
use crate::identity::{Attributes, UserInfo};
use crate::selector::FieldSelector;

/// The attributes of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestInfo {
    /// Whether it is for a resource; otherwise only `verb` and `path` are used.
    pub(crate) is_resource: bool,
    /// API verb, or the lower-case HTTP method.
    pub(crate) verb: &'static str,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) resource: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    pub(crate) path: String,
}

impl RequestInfo {
    /// Parses method, path and query.
    pub(crate) fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let mut info = Self { path: path.to_owned(), verb: method_verb(method), ..Self::default() };
        let segments: Vec<String> = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
            .collect();
        let mut rest = match segments.first().map(String::as_str) {
            Some("api") if segments.len() > 2 => {
                info.version = segments[1].clone();
                &segments[2..]
            }
            Some("apis") if segments.len() > 3 => {
                info.group = segments[1].clone();
                info.version = segments[2].clone();
                &segments[3..]
            }
            _ => return info,
        };
        info.is_resource = true;
        let mut watching = false;
        if rest[0] == "watch" && rest.len() > 1 {
            watching = true;
            rest = &rest[1..];
        }
        if rest[0] == "namespaces" && rest.len() > 1 {
            info.namespace = rest[1].clone();
            let own = rest.get(2).is_none_or(|next| matches!(next.as_str(), "status" | "finalize"));
            if !own {
                rest = &rest[2..];
            }
        }
        info.resource = rest[0].clone();
        info.name = rest.get(1).cloned().unwrap_or_default();
        info.subresource = rest.get(2..).unwrap_or_default().join("/");
        let named = !info.name.is_empty();
        info.verb = match *method {
            Method::POST => "create",
            Method::GET | Method::HEAD if watching || (query.flag("watch") && !named) => "watch",
            Method::GET | Method::HEAD if named => "get",
            Method::GET | Method::HEAD => "list",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if named => "delete",
            Method::DELETE => "deletecollection",
            _ => info.verb,
        };
        if watching && named {
            // The legacy form of watching a single object.
            info.subresource.clear();
        }
        info
    }

    /// The attributes for the authorizer. A list, watch or deletecollection with a field selector for a name has that
    /// name, so that `resourceNames` rules apply to it.
    pub(crate) fn attributes(&self, user: &UserInfo, query: &Query) -> Attributes {
        let mut name = self.name.clone();
        if name.is_empty()
            && matches!(self.verb, "list" | "watch" | "deletecollection")
            && let Some(text) = query.get("fieldSelector")
            && let Ok(selector) = FieldSelector::parse(text)
        {
            name = selector.pinned("metadata.name").unwrap_or_default().to_owned();
        }
        Attributes {
            user: user.clone(),
            verb: self.verb.into(),
            group: self.group.clone(),
            version: self.version.clone(),
            resource: self.resource.clone(),
            subresource: self.subresource.clone(),
            namespace: self.namespace.clone(),
            name,
            resource_request: self.is_resource,
            path: self.path.clone(),
        }
    }
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, path: &str, query: &str) -> RequestInfo {
        RequestInfo::parse(&method.parse().unwrap(), path, &Query::parse(query))
    }

    fn short(info: &RequestInfo) -> String {
        format!(
            "{} {}/{} ns={} {} {} {}",
            info.verb, info.group, info.version, info.namespace, info.resource, info.name, info.subresource
        )
    }

    #[test]
    fn paths_and_verbs() {
        let cases = [
            ("GET", "/api/v1/pods", "", "list /v1 ns= pods  "),
            ("GET", "/api/v1/pods", "watch=true", "watch /v1 ns= pods  "),
            ("GET", "/api/v1/namespaces/a/pods/b", "", "get /v1 ns=a pods b "),
            ("PATCH", "/api/v1/namespaces/a/pods/b/status", "", "patch /v1 ns=a pods b status"),
            ("PUT", "/api/v1/namespaces/a/status", "", "update /v1 ns=a namespaces a status"),
            ("PUT", "/api/v1/namespaces/a/finalize", "", "update /v1 ns=a namespaces a finalize"),
            ("GET", "/api/v1/namespaces", "", "list /v1 ns= namespaces  "),
            (
                "DELETE",
                "/apis/apps/v1/namespaces/a/deployments",
                "",
                "deletecollection apps/v1 ns=a deployments  ",
            ),
            ("GET", "/api/v1/watch/namespaces/a/pods/b", "", "watch /v1 ns=a pods b "),
            ("POST", "/apis/a.io/v1/namespaces/x/foos/y/token/z", "", "create a.io/v1 ns=x foos y token/z"),
            (
                "GET",
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
                "",
                "get rbac.authorization.k8s.io/v1 ns= clusterroles system:node ",
            ),
        ];
        for (method, path, query, expected) in cases {
            assert_eq!(short(&parse(method, path, query)), expected, "{method} {path}");
        }
        for path in ["/api", "/api/v1", "/apis/apps/v1", "/healthz", "/"] {
            assert!(!parse("GET", path, "").is_resource, "{path}");
        }
    }

    #[test]
    fn names_in_field_selectors_reach_the_authorizer() {
        let query = Query::parse("fieldSelector=metadata.name%3Dx");
        let info = RequestInfo::parse(&Method::GET, "/api/v1/namespaces/a/secrets", &query);
        assert_eq!(info.attributes(&UserInfo::default(), &query).name, "x");
    }
}
