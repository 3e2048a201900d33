//! The metric labels of a request. Names from the request are used only if the server knows them, so the number of
//! series is bounded.

use http::header::CONTENT_TYPE;
use http::request::Parts;

use super::info::RequestInfo;
use super::query::Query;
use super::service::Shared;
use super::{paths, pattern};
use crate::metrics::Labels;

impl Shared {
    pub(super) fn labels(&self, parts: &Parts, info: &RequestInfo, query: &Query) -> Labels {
        let (mut group, mut version, mut resource) = (String::new(), String::new(), String::new());
        let mut subresource = String::new();
        if !info.is_resource {
            subresource = self.known_path(&info.path).to_owned();
        } else if let Some(known) =
            self.objects.resources().resource(&info.group, &info.version, &info.resource)
        {
            let def = &known.def;
            (group, version, resource) = (def.group.clone(), def.version.clone(), def.plural.clone());
            let known = def.subresources.iter().any(|subresource| subresource.name == info.subresource);
            subresource = if known { info.subresource.clone() } else { String::new() };
        }
        Labels { verb: verb(parts, info), group, version, resource, subresource, scope: scope(info, query) }
    }

    fn known_path(&self, path: &str) -> &'static str {
        let plugged = self.plugins.routes.iter().flat_map(|route| route.paths()).copied();
        let mut known = paths::PATHS.iter().map(|(path, _)| *path).chain(plugged);
        known.find(|known| pattern::matches(known, path)).unwrap_or_default()
    }
}

/// The verb with kube-apiserver's names.
fn verb(parts: &Parts, info: &RequestInfo) -> &'static str {
    let applies = || {
        parts
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/apply-patch"))
    };
    match info.verb {
        "get" | "head" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" if applies() => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    }
}

fn scope(info: &RequestInfo, query: &Query) -> &'static str {
    if !info.is_resource {
        return "";
    }
    let pinned = || query.get("fieldSelector").is_some_and(|selector| selector.contains("metadata.name="));
    match (info.name.is_empty(), info.verb) {
        (false, _) | (_, "create") => "resource",
        (true, "list" | "watch" | "deletecollection") if pinned() => "resource",
        _ if !info.namespace.is_empty() => "namespace",
        _ => "cluster",
    }
}
