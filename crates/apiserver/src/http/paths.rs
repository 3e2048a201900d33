//! Non-resource paths: discovery, version, health.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::discovery::{self, AGGREGATED, Discovery, Document};
use super::negotiate::{Offer, Shape, negotiate};
use super::respond::{text, value_response};
use super::service::{Call, Shared};
use super::{ApiBody, pattern};
use crate::status::Status;

/// The page of a path.
#[derive(Clone, Copy)]
pub(super) enum Page {
    Root,
    Versions,
    Groups,
    Group,
    Resources,
    Version,
    Health,
}

/// The pages of these paths.
pub(super) const PATHS: &[(&str, Page)] = &[
    ("/", Page::Root),
    ("/api", Page::Versions),
    ("/api/{version}", Page::Resources),
    ("/apis", Page::Groups),
    ("/apis/{group}", Page::Group),
    ("/apis/{group}/{version}", Page::Resources),
    ("/version", Page::Version),
    ("/healthz", Page::Health),
    ("/healthz/{check}", Page::Health),
    ("/livez", Page::Health),
    ("/livez/{check}", Page::Health),
    ("/readyz", Page::Health),
    ("/readyz/{check}", Page::Health),
];

/// Returns the page, or 404.
pub(super) fn answer(call: &Call<'_>) -> Result<Response<ApiBody>, Status> {
    if !matches!(call.parts.method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_allowed());
    }
    let page = PATHS.iter().find(|(known, _)| pattern::matches(known, &call.info.path));
    let (_, page) = page.ok_or_else(Status::not_found_path)?;
    let segments: Vec<&str> = call.info.path.trim_matches('/').split('/').collect();
    let snapshot = call.shared.objects.resources().snapshot();
    let found = match page {
        Page::Versions | Page::Groups => {
            let form = negotiate(&call.parts.headers, Offer { aggregated: true, ..Offer::default() })?;
            let core = matches!(page, Page::Versions);
            if form.shape == Shape::Aggregated {
                let documents = Discovery::of(&snapshot);
                return Ok(aggregated(call, if core { &documents.core } else { &documents.groups }));
            }
            Some(if core { discovery::api_versions() } else { discovery::group_list(&snapshot) })
        }
        Page::Group => discovery::group(&snapshot, segments[1]),
        Page::Resources => match segments[1..] {
            [group, version] => discovery::resource_list(&snapshot, group, version),
            _ => discovery::resource_list(&snapshot, "", segments[1]),
        },
        Page::Version => Some(version(call.shared)),
        Page::Root => Some(json!({"paths": root_paths(call.shared)})),
        Page::Health => return Ok(health(call, segments[0], segments.get(1).copied())),
    };
    let value = found.ok_or_else(Status::not_found_path)?;
    let form = negotiate(&call.parts.headers, Offer::default())?;
    Ok(value_response(StatusCode::OK, &value, form.encoding, call.pretty()))
}

fn aggregated(call: &Call<'_>, document: &Document) -> Response<ApiBody> {
    let known = call.parts.headers.get(IF_NONE_MATCH).is_some_and(|tag| tag == document.etag.as_str());
    let mut response =
        Response::new(if known { ApiBody::empty() } else { ApiBody::full(document.body.clone()) });
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    if let Ok(etag) = HeaderValue::from_str(&document.etag) {
        headers.insert(ETAG, etag);
    }
    response
}

fn version(shared: &Shared) -> Value {
    let git = &shared.version;
    let mut numbers = git.trim_start_matches('v').split('.');
    json!({
        "major": numbers.next().unwrap_or_default(), "minor": numbers.next().unwrap_or_default(),
        "gitVersion": git, "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": format!("linux/{}", arch()),
    })
}

/// Go's names of CPU architectures.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn root_paths(shared: &Shared) -> Vec<String> {
    let mut paths = vec!["/api".to_owned(), "/api/v1".into(), "/apis".into()];
    for group in shared.objects.resources().snapshot().groups() {
        if !group.group.is_empty() {
            paths.push(format!("/apis/{}", group.group));
            paths.extend(group.versions.iter().map(|version| format!("/apis/{}/{version}", group.group)));
        }
    }
    paths.extend(["/healthz", "/livez", "/readyz", "/version"].map(str::to_owned));
    paths.sort();
    paths
}

/// `ok`, or one line per check with `?verbose`.
fn health(call: &Call<'_>, endpoint: &str, only: Option<&str>) -> Response<ApiBody> {
    let shared = call.shared;
    let mut checks = vec![("ping", true), ("storage", shared.objects.storage().health().is_ok())];
    if endpoint == "readyz" {
        checks.push(("shutdown", !*shared.stopping.borrow()));
    }
    if let Some(only) = only {
        return match checks.iter().find(|(name, _)| *name == only) {
            Some((_, true)) => text(StatusCode::OK, "ok"),
            Some((name, false)) => {
                text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {name} failed\n"))
            }
            None => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        };
    }
    let excluded: Vec<&str> = call.query.get("exclude").into_iter().collect();
    checks.retain(|(name, _)| !excluded.contains(name));
    let good = checks.iter().all(|(_, good)| *good);
    let lines: String =
        checks
            .iter()
            .map(|(name, good)| {
                if *good { format!("[+]{name} ok\n") } else { format!("[-]{name} failed: reason withheld\n") }
            })
            .collect();
    match (good, call.query.get("verbose").is_some()) {
        (true, false) => text(StatusCode::OK, "ok"),
        (true, true) => text(StatusCode::OK, format!("{lines}{endpoint} check passed\n")),
        (false, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n")),
    }
}
