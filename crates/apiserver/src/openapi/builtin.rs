//! Schemas of built-in kinds: fields and descriptions from the generated types of `k8s-openapi`, merge behaviour from
//! [`super::merge_keys`].

use std::collections::BTreeMap;

use k8s_openapi::api::{
    admissionregistration::v1 as admissionregistration, apps::v1 as apps, autoscaling::v1 as autoscaling_v1,
    autoscaling::v2 as autoscaling, batch::v1 as batch, certificates::v1 as certificates,
    coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery, events::v1 as events,
    networking::v1 as networking, node::v1 as node, policy::v1 as policy, rbac::v1 as rbac,
    scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::api::{authentication::v1 as authentication, authorization::v1 as authorization};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use super::document::gvk;
use super::{custom, merge_keys};
use crate::resources::Resource;

/// Adds the schema of a built-in resource and the schemas it refers to; returns its component name.
pub(super) fn schema(resource: &Resource, schemas: &mut BTreeMap<String, Value>) -> String {
    let def = &resource.def;
    let mut generator = generator();
    let name = subschema(&mut generator, &def.group, &def.version, &def.kind);
    collect(generator, schemas);
    // A kind that the library does not have still gets a schema with its type, so that clients can patch it.
    let name = name.unwrap_or_else(|| custom::component_name(resource));
    let schema = schemas
        .entry(name.clone())
        .or_insert_with(|| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    schema["x-kubernetes-group-version-kind"] = json!([gvk(resource)]);
    name
}

/// The schemas that every document refers to.
pub(super) fn common(schemas: &mut BTreeMap<String, Value>) {
    let mut generator = generator();
    generator.subschema_for::<meta::ObjectMeta>();
    generator.subschema_for::<meta::ListMeta>();
    generator.subschema_for::<meta::Status>();
    generator.subschema_for::<meta::DeleteOptions>();
    collect(generator, schemas);
}

/// `autoscaling/v1 Scale`.
pub(super) fn scale(schemas: &mut BTreeMap<String, Value>) {
    let mut generator = generator();
    generator.subschema_for::<autoscaling_v1::Scale>();
    collect(generator, schemas);
    if let Some(schema) = schemas.get_mut("io.k8s.api.autoscaling.v1.Scale") {
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": "autoscaling", "version": "v1", "kind": "Scale"}]);
    }
}

fn generator() -> SchemaGenerator {
    let settings = SchemaSettings::openapi3();
    SchemaGenerator::new(settings)
}

fn collect(mut generator: SchemaGenerator, schemas: &mut BTreeMap<String, Value>) {
    for (name, schema) in generator.take_definitions(false) {
        if schemas.contains_key(&name) {
            continue;
        }
        let mut schema = schema;
        adapt(&mut schema);
        extend(&name, &mut schema);
        schemas.insert(name, schema);
    }
}

/// A reference with siblings uses a single-element allOf, as kubectl expects.
fn adapt(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            // Only a string is a reference: JSONSchemaProps has a property with this name.
            if object.get("$ref").is_some_and(Value::is_string)
                && let Some(reference) = object.remove("$ref")
            {
                object.insert("allOf".to_owned(), json!([{"$ref": reference}]));
                return;
            }
            object.values_mut().for_each(adapt);
        }
        Value::Array(list) => list.iter_mut().for_each(adapt),
        _ => {}
    }
}

fn extend(name: &str, schema: &mut Value) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (field, property) in properties.iter_mut() {
        let (Some(extensions), Value::Object(property)) = (merge_keys::of(name, field), property) else {
            continue;
        };
        insert(property, &extensions.0);
    }
}

fn insert(property: &mut Map<String, Value>, extensions: &[(&'static str, Value)]) {
    for (key, value) in extensions {
        property.insert((*key).to_owned(), value.clone());
    }
}

/// Generates the schema of a kind; the kinds are those of the built-in table.
macro_rules! kinds {
    ($generator:ident, $group:ident, $version:ident, $kind:ident; $($g:literal $v:literal $module:ident: $($name:ident)*;)*) => {
        match ($group, $version, $kind) {
            $($(($g, $v, stringify!($name)) => {
                $generator.subschema_for::<$module::$name>();
                Some(<$module::$name as schemars::JsonSchema>::schema_name().into_owned())
            })*)*
            _ => None,
        }
    };
}

fn subschema(generator: &mut SchemaGenerator, group: &str, version: &str, kind: &str) -> Option<String> {
    kinds! { generator, group, version, kind;
        "" "v1" core: Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod
            PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount;
        "admissionregistration.k8s.io" "v1" admissionregistration: MutatingWebhookConfiguration
            ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration;
        "apiextensions.k8s.io" "v1" apiextensions: CustomResourceDefinition;
        "apiregistration.k8s.io" "v1" apiregistration: APIService;
        "apps" "v1" apps: ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet;
        "authentication.k8s.io" "v1" authentication: SelfSubjectReview TokenRequest TokenReview;
        "authorization.k8s.io" "v1" authorization: LocalSubjectAccessReview SelfSubjectAccessReview
            SelfSubjectRulesReview SubjectAccessReview;
        "autoscaling" "v1" autoscaling_v1: HorizontalPodAutoscaler;
        "autoscaling" "v2" autoscaling: HorizontalPodAutoscaler;
        "batch" "v1" batch: CronJob Job;
        "certificates.k8s.io" "v1" certificates: CertificateSigningRequest;
        "coordination.k8s.io" "v1" coordination: Lease;
        "discovery.k8s.io" "v1" discovery: EndpointSlice;
        "events.k8s.io" "v1" events: Event;
        "networking.k8s.io" "v1" networking: Ingress IngressClass NetworkPolicy;
        "node.k8s.io" "v1" node: RuntimeClass;
        "policy" "v1" policy: PodDisruptionBudget;
        "rbac.authorization.k8s.io" "v1" rbac: ClusterRole ClusterRoleBinding Role RoleBinding;
        "scheduling.k8s.io" "v1" scheduling: PriorityClass;
        "storage.k8s.io" "v1" storage: CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment;
    }
}
