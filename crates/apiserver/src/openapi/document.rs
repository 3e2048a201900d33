//! The document of one group and version: paths, and the schemas they refer to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{builtin, custom, reference};
use crate::resources::{Resource, Snapshot, SubresourceDef};

/// Name of the schema of object metadata.
pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

/// Builds the OpenAPI v3 document.
pub(super) fn make(snapshot: &Snapshot, group: &str, version: &str, server: &str) -> Value {
    let mut schemas = BTreeMap::new();
    let mut paths = Map::new();
    builtin::common(&mut schemas);
    schemas.insert(
        PATCH.to_owned(),
        json!({"description": "Patch is provided to give a concrete name and type to the Kubernetes PATCH request body.", "type": "object"}),
    );
    for resource in snapshot.in_version(group, version) {
        let name = match resource.strategy.custom() {
            Some(kind) => custom::schema(resource, kind, &mut schemas),
            None => builtin::schema(resource, &mut schemas),
        };
        list_schema(resource, &name, &mut schemas);
        if resource.scale().is_some() {
            builtin::scale(&mut schemas);
        }
        describe(resource, &name, &mut paths);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": server},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// A minimal OpenAPI v2 document: kinds and groups without fields, for clients that only check for existence.
pub(super) fn version_2(snapshot: &Snapshot, server: &str) -> Value {
    let mut definitions = Map::new();
    for resource in snapshot.resources() {
        definitions.insert(
            custom::component_name(resource),
            json!({
                "type": "object",
                "x-kubernetes-group-version-kind": [gvk(resource)],
                "x-kubernetes-preserve-unknown-fields": true,
            }),
        );
    }
    json!({
        "swagger": "2.0", "info": {"title": "Kubernetes", "version": server},
        "paths": {}, "definitions": definitions,
    })
}

pub(super) fn gvk(resource: &Resource) -> Value {
    let def = &resource.def;
    json!({"group": def.group, "version": def.version, "kind": def.kind})
}

fn list_schema(resource: &Resource, item: &str, schemas: &mut BTreeMap<String, Value>) {
    if !resource.has_verb("list") {
        return;
    }
    let def = &resource.def;
    let schema = json!({
        "description": format!("{} is a list of {}", def.list_kind, def.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"allOf": [reference(LIST_META)], "default": {}},
            "items": {"type": "array", "items": {"allOf": [reference(item)], "default": {}}},
        },
        "x-kubernetes-group-version-kind": [{"group": def.group, "version": def.version, "kind": def.list_kind}],
    });
    schemas.insert(format!("{item}List"), schema);
}

fn describe(resource: &Resource, item: &str, paths: &mut Map<String, Value>) {
    let def = &resource.def;
    let root = match def.group.as_str() {
        "" => format!("/api/{}", def.version),
        group => format!("/apis/{group}/{}", def.version),
    };
    let collection = match def.namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{}", def.plural),
        false => format!("{root}/{}", def.plural),
    };
    let operation = Operations { resource, item, gvk: gvk(resource) };
    let mut own = Map::new();
    if resource.has_verb("list") {
        own.insert("get".into(), operation.get("list", &format!("{item}List")));
        own.insert("delete".into(), operation.delete("deletecollection"));
    }
    if resource.has_verb("create") {
        own.insert("post".into(), operation.write("post", item));
    }
    own.insert("parameters".into(), parameters(def.namespaced, false));
    paths.insert(collection.clone(), Value::Object(own));
    if def.namespaced && resource.has_verb("list") {
        let list = operation.get("list", &format!("{item}List"));
        paths.insert(format!("{root}/{}", def.plural), json!({"get": list}));
    }
    if !resource.has_verb("get") {
        return;
    }
    let mut single = Map::new();
    single.insert("get".into(), operation.get("get", item));
    if resource.has_verb("update") {
        single.insert("put".into(), operation.write("put", item));
    }
    if resource.has_verb("patch") {
        single.insert("patch".into(), operation.patch(item));
    }
    if resource.has_verb("delete") {
        single.insert("delete".into(), operation.delete("delete"));
    }
    single.insert("parameters".into(), parameters(def.namespaced, true));
    paths.insert(format!("{collection}/{{name}}"), Value::Object(single));
    for sub in &def.subresources {
        paths.insert(format!("{collection}/{{name}}/{}", sub.name), subresource(&operation, sub));
    }
}

fn subresource(operation: &Operations<'_>, sub: &SubresourceDef) -> Value {
    let def = &operation.resource.def;
    let (item, gvk) = match sub.name.as_str() {
        "scale" => (SCALE, json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})),
        _ if sub.version.is_empty() => (operation.item, operation.gvk.clone()),
        _ => (PATCH, json!({"group": sub.group, "version": sub.version, "kind": sub.kind})),
    };
    let operation = Operations { resource: operation.resource, item, gvk };
    let mut out = Map::new();
    for verb in &sub.verbs {
        match *verb {
            "get" => drop(out.insert("get".into(), operation.get("get", item))),
            "update" => drop(out.insert("put".into(), operation.write("put", item))),
            "patch" => drop(out.insert("patch".into(), operation.patch(item))),
            "create" => drop(out.insert("post".into(), operation.write("post", item))),
            _ => {}
        }
    }
    out.insert("parameters".into(), parameters(def.namespaced, true));
    Value::Object(out)
}

struct Operations<'a> {
    resource: &'a Resource,
    item: &'a str,
    gvk: Value,
}

impl Operations<'_> {
    fn base(&self, action: &str, answer: &str) -> Value {
        json!({
            "tags": [self.resource.api_version().replace(['/', '.'], "_")],
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference(answer)}}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": self.gvk,
        })
    }

    fn get(&self, action: &str, answer: &str) -> Value {
        let mut operation = self.base(action, answer);
        if action == "list" {
            operation["parameters"] = query(&[
                ("allowWatchBookmarks", "boolean"),
                ("continue", "string"),
                ("fieldSelector", "string"),
                ("labelSelector", "string"),
                ("limit", "integer"),
                ("resourceVersion", "string"),
                ("resourceVersionMatch", "string"),
                ("sendInitialEvents", "boolean"),
                ("timeoutSeconds", "integer"),
                ("watch", "boolean"),
            ]);
        }
        operation
    }

    fn write(&self, action: &str, body: &str) -> Value {
        let mut operation = self.base(action, body);
        operation["parameters"] =
            query(&[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")]);
        operation["requestBody"] = json!({"content": {"*/*": {"schema": reference(body)}}, "required": true});
        operation
    }

    /// kubectl reads the supported patches from the content types: strategic merge for built-in kinds only.
    fn patch(&self, answer: &str) -> Value {
        let mut operation = self.base("patch", answer);
        operation["parameters"] = query(&[
            ("dryRun", "string"),
            ("fieldManager", "string"),
            ("fieldValidation", "string"),
            ("force", "boolean"),
        ]);
        let mut types = vec![
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json",
        ];
        if !self.resource.def.custom {
            types.push("application/strategic-merge-patch+json");
        }
        let content: Map<String, Value> =
            types.into_iter().map(|t| (t.to_owned(), json!({"schema": reference(PATCH)}))).collect();
        operation["requestBody"] = json!({"content": content, "required": true});
        operation
    }

    fn delete(&self, action: &str) -> Value {
        let mut operation = self.base(action, STATUS);
        operation["parameters"] = query(&[
            ("dryRun", "string"),
            ("gracePeriodSeconds", "integer"),
            ("orphanDependents", "boolean"),
            ("propagationPolicy", "string"),
        ]);
        operation["requestBody"] = json!({"content": {"*/*": {"schema": reference(DELETE_OPTIONS)}}});
        operation
    }
}

fn query(parameters: &[(&str, &str)]) -> Value {
    let all = parameters.iter().map(
        |(name, kind)| json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}}),
    );
    Value::Array(all.collect())
}

fn parameters(namespaced: bool, named: bool) -> Value {
    let path = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}});
    let mut all = Vec::new();
    if named {
        all.push(path("name"));
    }
    if namespaced {
        all.push(path("namespace"));
    }
    all.push(json!({"name": "pretty", "in": "query", "schema": {"type": "string", "uniqueItems": true}}));
    Value::Array(all)
}
