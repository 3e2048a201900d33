use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{Controller, Converter, GROUP, PLURAL, observe, resource};
use crate::clock::SystemClock;
use crate::object::ObjectExt;
use crate::objects::{Context, DeleteOptions, FieldValidation, Objects, UpdateOptions};
use crate::registry::{Registry, Resource};
use crate::status::Status;
use crate::storage::{Index, MemoryStorage, Storage, StorageError, Version, Write};

struct World {
    objects: Objects,
    crds: Arc<Resource>,
    context: Context,
    _controller: Controller,
}

impl World {
    async fn new() -> World {
        World::over(Arc::new(MemoryStorage::new()), HashMap::new()).await
    }

    async fn over(storage: Arc<dyn Storage>, converters: HashMap<String, Arc<dyn Converter>>) -> World {
        let (storage, observer) = observe(storage);
        let registry = Arc::new(Registry::new([resource()]));
        let objects = Objects::new(storage, registry, Arc::new(SystemClock), None, Vec::new());
        let controller = Controller::start(observer, objects.clone(), converters).await;
        let crds = objects.registry().resource(GROUP, "v1", PLURAL).expect("served");
        World { objects, crds, context: Context::internal("test"), _controller: controller }
    }

    async fn create_crd(&self, crd: Value) -> Result<(), Status> {
        self.objects.create(&self.context, &self.crds, "", crd).await.map(drop)
    }

    async fn crd(&self, name: &str) -> Value {
        self.objects.get_value(&self.crds, "", name).await.expect("stored")
    }

    async fn update_crd(&self, name: &str, change: impl Fn(&mut Value) + Send + Sync) -> Result<(), Status> {
        let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
        let result = self.objects.update(&self.context, &self.crds, "", name, options, |old| {
            let mut crd = old.cloned().unwrap_or_default();
            change(&mut crd);
            Ok(crd)
        });
        result.await.map(drop)
    }

    fn served(&self, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.objects.registry().resource("example.com", version, plural)
    }

    async fn create(&self, resource: &Arc<Resource>, object: Value) -> Result<Value, Status> {
        let outcome = self.objects.create(&self.context, resource, "d", object).await?;
        resource.decode(&outcome.version).await
    }

    /// Waits for what the controller does after it has answered.
    async fn eventually(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        let wait = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait)
            .await
            .unwrap_or_else(|_| panic!("{what} in 10 s"));
    }
}

fn crd(plural: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer", "default": 1, "maximum": 5},
                        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]}
                    }},
                    "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}}
                }}}
            }]
        }
    })
}

fn condition<'a>(crd: &'a Value, kind: &str) -> &'a Value {
    let found = crd["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == kind);
    found.unwrap_or(&Value::Null)
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn a_crd_is_served_when_its_create_returns() {
    let world = World::new().await;
    world.create_crd(crd("tanks", "Tank")).await.unwrap();
    let tanks = world.served("v1", "tanks").expect("served at once");
    let stored = world.crd("tanks.example.com").await;
    assert_eq!(condition(&stored, "NamesAccepted")["reason"], "NoConflicts");
    assert_eq!(condition(&stored, "Established")["status"], "True");
    assert_eq!(condition(&stored, "Established")["reason"], "InitialNamesAccepted");
    assert_eq!(stored["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(stored["status"]["acceptedNames"]["listKind"], "TankList");
    assert_eq!(stored["spec"]["names"]["singular"], "tank");
    assert_eq!(stored["spec"]["conversion"], json!({"strategy": "None"}));

    let made = world.create(&tanks, object("Tank", "a", json!({"unknown": 1, "fixed": "x"}))).await.unwrap();
    assert_eq!(made["spec"], json!({"size": 1, "fixed": "x"}));
    let refused = world.create(&tanks, object("Tank", "b", json!({"size": 9}))).await.unwrap_err();
    assert_eq!(refused.code, 422);
    assert!(
        refused
            .message
            .contains("spec.size: Invalid value: 9: spec.size in body should be less than or equal to 5")
    );
    let strict = Context { field_validation: FieldValidation::Strict, ..world.context.clone() };
    let unknown = world.objects.create(&strict, &tanks, "d", object("Tank", "c", json!({"typo": 1}))).await;
    assert!(unknown.unwrap_err().message.contains("unknown field \"spec.typo\""));

    let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
    let change = world.objects.update(&world.context, &tanks, "d", "a", options, |old| {
        let mut object = old.cloned().unwrap_or_default();
        object["spec"]["fixed"] = "y".into();
        Ok(object)
    });
    assert!(change.await.unwrap_err().message.contains("spec.fixed: Invalid value: \"y\": immutable"));
}

/// Check 30: a clash is named and not served; freeing the names serves the second.
#[tokio::test]
async fn check_30_name_conflicts() {
    let world = World::new().await;
    world.create_crd(crd("tanks", "Tank")).await.unwrap();
    let mut clashing = crd("armoredtanks", "Tank");
    clashing["spec"]["names"]["singular"] = "armoredtank".into();
    clashing["spec"]["names"]["listKind"] = "ArmoredTankList".into();
    world.create_crd(clashing).await.unwrap();
    let second = world.crd("armoredtanks.example.com").await;
    assert_eq!(condition(&second, "NamesAccepted")["status"], "False");
    assert_eq!(condition(&second, "NamesAccepted")["reason"], "KindConflict");
    assert_eq!(condition(&second, "NamesAccepted")["message"], "\"Tank\" is already in use");
    assert_eq!(condition(&second, "Established")["status"], "False");
    assert!(world.served("v1", "armoredtanks").is_none());
    let options = DeleteOptions::default();
    world.objects.delete(&world.context, &world.crds, "", "tanks.example.com", &options).await.unwrap();
    world.eventually("the second is served", async || world.served("v1", "armoredtanks").is_some()).await;
    assert!(world.served("v1", "tanks").is_none());
    world
        .eventually("established", async || {
            condition(&world.crd("armoredtanks.example.com").await, "Established")["status"] == "True"
        })
        .await;
}

/// Check 31, and what else may not change.
#[tokio::test]
async fn check_31_versions_and_immutable_fields() {
    let world = World::new().await;
    world.create_crd(crd("tanks", "Tank")).await.unwrap();
    let add_v2 = |crd: &mut Value| {
        let mut v2 = crd["spec"]["versions"][0].clone();
        v2["name"] = "v2".into();
        crd["spec"]["versions"][0]["storage"] = false.into();
        crd["spec"]["versions"].as_array_mut().unwrap().push(v2);
    };
    world.update_crd("tanks.example.com", add_v2).await.unwrap();
    assert_eq!(world.crd("tanks.example.com").await["status"]["storedVersions"], json!(["v1", "v2"]));
    assert!(world.served("v1", "tanks").is_some() && world.served("v2", "tanks").is_some());
    let refused = world
        .update_crd("tanks.example.com", |crd| {
            drop(crd["spec"]["versions"].as_array_mut().unwrap().remove(0))
        })
        .await
        .unwrap_err();
    assert_eq!(refused.code, 422);
    assert!(
        refused
            .message
            .contains("status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions")
    );
    for (field, value) in [("group", "other.com"), ("scope", "Cluster")] {
        let refused = world.update_crd("tanks.example.com", |crd| crd["spec"][field] = value.into()).await;
        let message = refused.unwrap_err().message;
        assert!(
            message.contains(&format!("spec.{field}: Invalid value: {value:?}: field is immutable")),
            "{message}"
        );
    }
}

#[tokio::test]
async fn bad_crds_are_refused_with_paths() {
    let world = World::new().await;
    let case = async |change: fn(&mut Value), wanted: &str| {
        let mut crd = crd("tanks", "Tank");
        change(&mut crd);
        let status = world.create_crd(crd).await.unwrap_err();
        assert_eq!(status.code, 422, "{wanted}");
        assert!(status.message.contains(wanted), "{wanted}: {}", status.message);
    };
    case(|c| c["metadata"]["name"] = "x.example.com".into(), "metadata.name: Invalid value").await;
    case(
        |c| c["spec"]["versions"][0]["storage"] = false.into(),
        "must have exactly one version marked as storage",
    )
    .await;
    case(
        |c| c["spec"]["versions"][0]["schema"] = Value::Null,
        "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
    )
    .await;
    case(
        |c| c["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["x"] = json!({}),
        "spec.versions[0].schema.openAPIV3Schema.properties[x].type: Required value: must not be empty for specified object fields",
    )
    .await;
    case(
        |c| {
            let rule = json!({"type": "array", "items": {"type": "array", "items": {"type": "string"}},
                "x-kubernetes-validations": [{"rule": "self.all(x, x.all(y, y != 'z'))"}]});
            c["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["x"] = rule;
        },
        "estimated rule cost exceeds budget by factor of more than 100x",
    )
    .await;
    case(
        |c| c["spec"]["preserveUnknownFields"] = true.into(),
        "spec.preserveUnknownFields: Invalid value: true",
    )
    .await;
    case(
        |c| {
            c["spec"]["versions"][0]["additionalPrinterColumns"] =
                json!([{"name": "a", "type": "text", "jsonPath": ".a["}])
        },
        "spec.versions[0].additionalPrinterColumns[0].type: Unsupported value: \"text\"",
    )
    .await;
    assert!(world.served("v1", "tanks").is_none());
}

/// Check 32: instances go first; what blocks is named; a new CRD of the same name starts empty.
#[tokio::test]
async fn check_32_deletion_removes_instances() {
    let world = World::new().await;
    world.create_crd(crd("tanks", "Tank")).await.unwrap();
    let tanks = world.served("v1", "tanks").unwrap();
    world.create(&tanks, object("Tank", "free", json!({}))).await.unwrap();
    let mut held = object("Tank", "held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create(&tanks, held).await.unwrap();
    let options = DeleteOptions::default();
    let deleted =
        world.objects.delete(&world.context, &world.crds, "", "tanks.example.com", &options).await.unwrap();
    assert!(!deleted.removed);
    let first = deleted.version.decode();
    assert_eq!(first["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    assert_eq!(condition(&first, "Terminating")["reason"], "InstanceDeletionPending");
    let named = async || {
        let crd = world.crd("tanks.example.com").await;
        let terminating = condition(&crd, "Terminating");
        terminating["reason"] == "InstanceDeletionInProgress"
            && terminating.top_str("message").ends_with("waiting for d/held (finalizers: example.com/hold)")
    };
    world.eventually("the blocking object is named", named).await;
    let refused = world.create(&tanks, object("Tank", "late", json!({}))).await.unwrap_err();
    assert_eq!(refused.code, 403, "{}", refused.message);
    let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
    let release = world.objects.update(&world.context, &tanks, "d", "held", options, |old| {
        let mut object = old.cloned().unwrap_or_default();
        object["metadata"]["finalizers"] = json!([]);
        Ok(object)
    });
    assert!(release.await.unwrap().removed);
    let gone = async || world.objects.get(&world.crds, "", "tanks.example.com").is_err();
    world.eventually("the CRD is gone", gone).await;
    world.eventually("it is not served", async || world.served("v1", "tanks").is_none()).await;
    world.create_crd(crd("tanks", "Tank")).await.unwrap();
    let tanks = world.served("v1", "tanks").unwrap();
    assert!(world.objects.get(&tanks, "d", "held").is_err());
}

struct Doubling;

impl Converter for Doubling {
    fn convert(&self, mut object: Value, to: &str) -> Result<Value, Status> {
        let size = object["spec"]["size"].as_i64().unwrap_or(0);
        object["spec"]["size"] = if to == "v2" { size * 2 } else { size / 2 }.into();
        Ok(object)
    }
}

fn two_versions() -> Value {
    let mut crd = crd("tanks", "Tank");
    let mut v2 = crd["spec"]["versions"][0].clone();
    v2["name"] = "v2".into();
    v2["storage"] = false.into();
    crd["spec"]["versions"].as_array_mut().unwrap().push(v2);
    crd
}

#[tokio::test]
async fn versions_are_converted_by_none_or_in_process() {
    for (converters, wanted) in [
        (HashMap::new(), 2),
        (HashMap::from([("tanks.example.com".to_owned(), Arc::new(Doubling) as Arc<dyn Converter>)]), 4),
    ] {
        let world = World::over(Arc::new(MemoryStorage::new()), converters).await;
        world.create_crd(two_versions()).await.unwrap();
        let (v1, v2) = (world.served("v1", "tanks").unwrap(), world.served("v2", "tanks").unwrap());
        world.create(&v1, object("Tank", "a", json!({"size": 2}))).await.unwrap();
        let read = world.objects.get_value(&v2, "d", "a").await.unwrap();
        assert_eq!((read.api_version(), &read["spec"]["size"]), ("example.com/v2", &json!(wanted)));
        let mut other = object("Tank", "b", json!({"size": 4}));
        other["apiVersion"] = "example.com/v2".into();
        world.create(&v2, other).await.unwrap();
        let stored = world.objects.get(&v1, "d", "b").unwrap().decode();
        assert_eq!(stored.api_version(), "example.com/v1");
        assert_eq!(stored["spec"]["size"], json!(if wanted == 4 { 2 } else { 4 }));
    }
}

/// A store whose writes fail, one by one, as a script has it.
struct Scripted {
    inner: MemoryStorage,
    /// How many writes succeed, and how many fail after them.
    script: parking_lot::Mutex<(usize, usize)>,
    /// Whether to fail is to panic.
    panics: bool,
}

impl Storage for Scripted {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Version>, StorageError>> {
        let mut script = self.script.lock();
        let left = match *script {
            (0, 0) => None,
            (0, failing) => Some((0, failing - 1)),
            (good, failing) => Some((good - 1, failing)),
        };
        let fails = script.0 == 0 && left.is_some();
        *script = left.unwrap_or_default();
        if fails {
            assert!(!self.panics, "on purpose");
            return Box::pin(async { Err(StorageError::Full("on purpose".into())) });
        }
        self.inner.write(write)
    }

    fn index(&self) -> &Index {
        self.inner.index()
    }

    fn compact(&self, revision: u64) -> BoxFuture<'_, Result<(), StorageError>> {
        self.inner.compact(revision)
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_that_the_store_refused_is_stored_later() {
    // The CRD itself is stored; its status is refused twice.
    let storage = Scripted { inner: MemoryStorage::new(), script: (1, 2).into(), panics: false };
    let world = World::over(Arc::new(storage), HashMap::new()).await;
    world.create_crd(crd("widgets", "Widget")).await.unwrap();
    assert!(world.served("v1", "widgets").is_some());
    world
        .eventually("Established", async || {
            condition(&world.crd("widgets.example.com").await, "Established")["status"] == "True"
        })
        .await;
    // So is the end of a CRD that is deleted.
    let storage = Scripted { inner: MemoryStorage::new(), script: (3, 2).into(), panics: false };
    let world = World::over(Arc::new(storage), HashMap::new()).await;
    world.create_crd(crd("widgets", "Widget")).await.unwrap();
    let options = DeleteOptions::default();
    world.objects.delete(&world.context, &world.crds, "", "widgets.example.com", &options).await.unwrap();
    world
        .eventually("gone", async || {
            world.objects.get_value(&world.crds, "", "widgets.example.com").await.is_err()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_panics_is_made_again() {
    let storage = Scripted { inner: MemoryStorage::new(), script: (1, 1).into(), panics: true };
    let world = World::over(Arc::new(storage), HashMap::new()).await;
    world.create_crd(crd("widgets", "Widget")).await.unwrap();
    world
        .eventually("Established", async || {
            condition(&world.crd("widgets.example.com").await, "Established")["status"] == "True"
        })
        .await;
    assert!(world.served("v1", "widgets").is_some());
}

/// Stored CRDs are served again by the next server over the same store, and old objects get new defaults when read.
#[tokio::test]
async fn a_restart_serves_stored_crds() {
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let first = World::over(storage.clone(), HashMap::new()).await;
    first.create_crd(crd("tanks", "Tank")).await.unwrap();
    let tanks = first.served("v1", "tanks").unwrap();
    first.create(&tanks, object("Tank", "a", json!({}))).await.unwrap();
    let add_default = |crd: &mut Value| {
        let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        spec["properties"]["color"] = json!({"type": "string", "default": "green"});
    };
    first.update_crd("tanks.example.com", add_default).await.unwrap();
    drop(first);
    let second = World::over(storage, HashMap::new()).await;
    let tanks = second.served("v1", "tanks").expect("served at start");
    let read = second.objects.get_value(&tanks, "d", "a").await.unwrap();
    assert_eq!(read["spec"], json!({"size": 1, "color": "green"}));
}

/// Schemas hold values of any form (`default`, `enum`, `additionalProperties`), which are not unknown fields.
#[test]
fn the_fields_of_a_schema_are_known() {
    use crate::strategy::Strategy;
    let mut crd = crd("tanks", "Tank");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["x"] = json!({
        "type": "object", "default": {"a": {"b": [1, null]}}, "additionalProperties": {"type": "string", "minLength": 1},
        "x-kubernetes-validations": [{"rule": "true", "optionalOldSelf": true}],
    });
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["y"] = json!({
        "type": "array", "maxItems": 3, "minimum": 0.5, "items": {"type": "string", "enum": ["a", {"b": 1}], "example": {"c": 1}},
        "x-kubernetes-list-type": "atomic", "x-kubernetes-map-type": "atomic", "x-kubernetes-preserve-unknown-fields": true,
    });
    let before = crd.clone();
    assert_eq!(super::strategy::CrdStrategy.prune(&mut crd), Vec::<String>::new());
    assert_eq!(crd, before);
    crd["spec"]["versions"][0]["typo"] = json!(1);
    assert_eq!(super::strategy::CrdStrategy.prune(&mut crd), ["spec.versions[0].typo"]);
}
