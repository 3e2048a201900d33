//! The description of one resource in one version.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::objects::{Objects, WriteContext};
use crate::resources::Resource;
use crate::status::Status;

/// The names of a resource and the rules for its objects.
#[derive(Clone, Debug, Default)]
pub struct ResourceDef {
    /// API group, empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// `deployments`.
    pub plural: String,
    /// `deployment`.
    pub singular: String,
    /// `Deployment`.
    pub kind: String,
    /// `DeploymentList`.
    pub list_kind: String,
    /// `deploy`.
    pub short_names: Vec<String>,
    /// `all`, …
    pub categories: Vec<String>,
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// Verbs on the resource itself.
    pub verbs: Vec<&'static str>,
    /// Subresources.
    pub subresources: Vec<SubresourceDef>,
    /// Behaviour on writes.
    pub rules: Rules,
    /// Field selectors besides `metadata.name` and `metadata.namespace`.
    pub selectable_fields: Vec<SelectableField>,
    /// `apiVersion` of stored objects; empty means this version.
    pub storage_api_version: String,
    /// Group of the storage key, if another group shares the storage (events).
    pub storage_group: Option<String>,
    /// Text of the `Warning` header on every request.
    pub deprecation_warning: Option<String>,
    /// Whether it is defined by a CRD.
    pub custom: bool,
}

/// The behaviour of a resource on writes.
#[derive(Clone, Debug)]
pub struct Rules {
    /// PUT without resourceVersion is allowed.
    pub unconditional_update: bool,
    /// PUT creates an object that does not exist.
    pub create_on_update: bool,
    /// `metadata.generation` is maintained.
    pub generation: bool,
    /// Writes to the main endpoint keep the stored status, and creates drop it.
    pub wipe_status: bool,
    /// Writes to `/status` may also change annotations (built-in kinds).
    pub status_annotations: bool,
    /// Writes to `/status` may also change labels (Node, Namespace).
    pub status_labels: bool,
    /// The default propagation policy.
    pub propagation: Propagation,
    /// Whether garbage collection considers it (not for events).
    pub garbage_collected: bool,
    /// The syntax of names.
    pub names: NameRule,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            unconditional_update: true,
            create_on_update: false,
            generation: false,
            wipe_status: false,
            status_annotations: false,
            status_labels: false,
            propagation: Propagation::Background,
            garbage_collected: true,
            names: NameRule::Subdomain,
        }
    }
}

/// Rules for `metadata.name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NameRule {
    /// RFC 1123 subdomain.
    #[default]
    Subdomain,
    /// RFC 1123 label.
    Label,
    /// RFC 1035 label (Service).
    Dns1035Label,
    /// Any path segment (RBAC).
    PathSegment,
}

/// What to do with dependents on delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are kept and lose the reference.
    Orphan,
    /// They are deleted after the owner.
    Background,
    /// They are deleted before the owner.
    Foreground,
}

/// A field that field selectors support.
#[derive(Clone, Debug)]
pub struct SelectableField {
    /// The label in the selector, `spec.nodeName`.
    pub label: String,
    /// The paths of the value, as keys from the root; the first path with a value is used.
    pub paths: Vec<Vec<String>>,
    /// The default value.
    pub default: &'static str,
}

impl SelectableField {
    /// A field whose label is its path.
    pub fn path(label: &str) -> Self {
        Self { label: label.into(), paths: vec![split(label)], default: "" }
    }

    /// A field whose path differs from its label.
    pub fn at(label: &str, paths: &[&str], default: &'static str) -> Self {
        Self { label: label.into(), paths: paths.iter().map(|path| split(path)).collect(), default }
    }

    /// Its value in an object.
    pub fn value(&self, object: &Value) -> Box<str> {
        for path in &self.paths {
            let found = path.iter().try_fold(object, |value, key| value.get(key));
            match found {
                Some(Value::String(text)) if !text.is_empty() => return text.as_str().into(),
                Some(Value::Bool(flag)) => return flag.to_string().into(),
                Some(Value::Number(number)) => return number.to_string().into(),
                _ => {}
            }
        }
        self.default.into()
    }
}

fn split(path: &str) -> Vec<String> {
    path.split('.').filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

/// A subresource.
#[derive(Clone, Debug)]
pub struct SubresourceDef {
    /// `status`, `scale`, `token`, …
    pub name: String,
    /// Group, version and kind of its objects; empty group and version mean the parent's.
    pub group: String,
    /// See `group`.
    pub version: String,
    /// See `group`.
    pub kind: String,
    /// Verbs.
    pub verbs: Vec<&'static str>,
    /// The implementation.
    pub serve: Serve,
}

impl SubresourceDef {
    /// `/status` of a kind.
    pub fn status(kind: &str) -> Self {
        Self {
            name: "status".into(),
            group: String::new(),
            version: String::new(),
            kind: kind.into(),
            verbs: vec!["get", "patch", "update"],
            serve: Serve::Status,
        }
    }

    /// `/scale`.
    pub fn scale(paths: ScalePaths) -> Self {
        Self {
            name: "scale".into(),
            group: "autoscaling".into(),
            version: "v1".into(),
            kind: "Scale".into(),
            verbs: vec!["get", "patch", "update"],
            serve: Serve::Scale(paths),
        }
    }
}

/// The implementation of a subresource.
#[derive(Clone)]
pub enum Serve {
    /// The status part of the stored object.
    Status,
    /// `autoscaling/v1 Scale` for fields of the stored object.
    Scale(ScalePaths),
    /// An implementation outside of this module.
    Connect(Arc<dyn Connect>),
}

impl std::fmt::Debug for Serve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Status => "Status",
            Self::Scale(_) => "Scale",
            Self::Connect(_) => "Connect",
        })
    }
}

/// The fields of `/scale`, as keys from the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScalePaths {
    /// Below `spec`.
    pub spec_replicas: Vec<String>,
    /// Below `status`.
    pub status_replicas: Vec<String>,
    /// A string selector (CRDs) or a LabelSelector (built-ins).
    pub selector: Option<Vec<String>>,
}

impl ScalePaths {
    /// Parses paths in the form `.spec.replicas`.
    pub fn parse(spec: &str, status: &str, selector: Option<&str>) -> Self {
        Self {
            spec_replicas: split(spec),
            status_replicas: split(status),
            selector: selector.filter(|path| !path.is_empty()).map(split),
        }
    }
}

/// A request to a [`Connect`] subresource.
pub struct ConnectRequest<'a> {
    /// API verb (`get`, `create`, `update`, `patch`, `delete`).
    pub verb: &'a str,
    /// The parent resource.
    pub resource: &'a Arc<Resource>,
    /// Namespace or empty.
    pub namespace: &'a str,
    /// Name of the parent object.
    pub name: &'a str,
    /// The decoded body, if any.
    pub body: Option<Value>,
    /// Caller, dry run, warnings.
    pub context: &'a WriteContext,
    /// Access to objects.
    pub objects: &'a Objects,
}

/// The implementation of a subresource such as `serviceaccounts/token` or `namespaces/finalize`.
pub trait Connect: Send + Sync + 'static {
    /// Returns an HTTP status code and an object.
    fn connect<'a>(&'a self, request: ConnectRequest<'a>) -> BoxFuture<'a, Result<(u16, Value), Status>>;
}

/// The implementation of a resource that is created and never stored (reviews).
pub trait Virtual: Send + Sync + 'static {
    /// Answers a POST.
    fn create<'a>(
        &'a self,
        context: &'a WriteContext,
        objects: &'a Objects,
        namespace: &'a str,
        object: Value,
    ) -> BoxFuture<'a, Result<Value, Status>>;
}
