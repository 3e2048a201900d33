use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{Controller, Converter, GROUP, PLURAL, observe, resource};
use crate::clock::SystemClock;
use crate::object::ObjectExt;
use crate::objects::{DeleteOptions, FieldValidation, Objects, UpdateOptions, WriteContext};
use crate::resources::{Resource, ResourceTable};
use crate::status::Status;
use crate::storage::{Index, MemoryStorage, Storage, StorageError, Version, Write};

struct Fixture {
    objects: Objects,
    crds: Arc<Resource>,
    context: WriteContext,
    _controller: Controller,
}

impl Fixture {
    async fn new() -> Fixture {
        Fixture::over(Arc::new(MemoryStorage::new()), HashMap::new()).await
    }

    async fn over(storage: Arc<dyn Storage>, converters: HashMap<String, Arc<dyn Converter>>) -> Fixture {
        let (storage, observer) = observe(storage);
        let resources = Arc::new(ResourceTable::new([resource()]));
        let objects = Objects::new(storage, resources, Arc::new(SystemClock), None, Vec::new());
        let controller = Controller::start(observer, objects.clone(), converters).await;
        let crds = objects.resources().resource(GROUP, "v1", PLURAL).expect("served");
        Fixture { objects, crds, context: WriteContext::internal("test"), _controller: controller }
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
        self.objects.resources().resource("example.com", version, plural)
    }

    async fn create(&self, resource: &Arc<Resource>, object: Value) -> Result<Value, Status> {
        let outcome = self.objects.create(&self.context, resource, "d", object).await?;
        resource.decode(&outcome.version).await
    }

    /// Waits for what the controller does after its response.
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
    let fixture = Fixture::new().await;
    fixture.create_crd(crd("tanks", "Tank")).await.unwrap();
    let tanks = fixture.served("v1", "tanks").expect("served at once");
    let stored = fixture.crd("tanks.example.com").await;
    assert_eq!(condition(&stored, "NamesAccepted")["reason"], "NoConflicts");
    assert_eq!(condition(&stored, "Established")["status"], "True");
    assert_eq!(condition(&stored, "Established")["reason"], "InitialNamesAccepted");
    assert_eq!(stored["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(stored["status"]["acceptedNames"]["listKind"], "TankList");
    assert_eq!(stored["spec"]["names"]["singular"], "tank");
    assert_eq!(stored["spec"]["conversion"], json!({"strategy": "None"}));

    let made =
        fixture.create(&tanks, object("Tank", "a", json!({"unknown": 1, "fixed": "x"}))).await.unwrap();
    assert_eq!(made["spec"], json!({"size": 1, "fixed": "x"}));
    let refused = fixture.create(&tanks, object("Tank", "b", json!({"size": 9}))).await.unwrap_err();
    assert_eq!(refused.code, 422);
    assert!(
        refused
            .message
            .contains("spec.size: Invalid value: 9: spec.size in body should be less than or equal to 5")
    );
    let strict = WriteContext { field_validation: FieldValidation::Strict, ..fixture.context.clone() };
    let unknown = fixture.objects.create(&strict, &tanks, "d", object("Tank", "c", json!({"typo": 1}))).await;
    assert!(unknown.unwrap_err().message.contains("unknown field \"spec.typo\""));

    let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
    let change = fixture.objects.update(&fixture.context, &tanks, "d", "a", options, |old| {
        let mut object = old.cloned().unwrap_or_default();
        object["spec"]["fixed"] = "y".into();
        Ok(object)
    });
    assert!(change.await.unwrap_err().message.contains("spec.fixed: Invalid value: \"y\": immutable"));
}

/// Check 30: a conflict is reported and not served; after the names are released, the second CRD is served.
#[tokio::test]
async fn check_30_name_conflicts() {
    let fixture = Fixture::new().await;
    fixture.create_crd(crd("tanks", "Tank")).await.unwrap();
    let mut clashing = crd("armoredtanks", "Tank");
    clashing["spec"]["names"]["singular"] = "armoredtank".into();
    clashing["spec"]["names"]["listKind"] = "ArmoredTankList".into();
    fixture.create_crd(clashing).await.unwrap();
    let second = fixture.crd("armoredtanks.example.com").await;
    assert_eq!(condition(&second, "NamesAccepted")["status"], "False");
    assert_eq!(condition(&second, "NamesAccepted")["reason"], "KindConflict");
    assert_eq!(condition(&second, "NamesAccepted")["message"], "\"Tank\" is already in use");
    assert_eq!(condition(&second, "Established")["status"], "False");
    assert!(fixture.served("v1", "armoredtanks").is_none());
    let options = DeleteOptions::default();
    fixture.objects.delete(&fixture.context, &fixture.crds, "", "tanks.example.com", &options).await.unwrap();
    fixture.eventually("the second is served", async || fixture.served("v1", "armoredtanks").is_some()).await;
    assert!(fixture.served("v1", "tanks").is_none());
    fixture
        .eventually("established", async || {
            condition(&fixture.crd("armoredtanks.example.com").await, "Established")["status"] == "True"
        })
        .await;
}

/// Check 31, and other immutable fields.
#[tokio::test]
async fn check_31_versions_and_immutable_fields() {
    let fixture = Fixture::new().await;
    fixture.create_crd(crd("tanks", "Tank")).await.unwrap();
    let add_v2 = |crd: &mut Value| {
        let mut v2 = crd["spec"]["versions"][0].clone();
        v2["name"] = "v2".into();
        crd["spec"]["versions"][0]["storage"] = false.into();
        crd["spec"]["versions"].as_array_mut().unwrap().push(v2);
    };
    fixture.update_crd("tanks.example.com", add_v2).await.unwrap();
    assert_eq!(fixture.crd("tanks.example.com").await["status"]["storedVersions"], json!(["v1", "v2"]));
    assert!(fixture.served("v1", "tanks").is_some() && fixture.served("v2", "tanks").is_some());
    let refused = fixture
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
        let refused = fixture.update_crd("tanks.example.com", |crd| crd["spec"][field] = value.into()).await;
        let message = refused.unwrap_err().message;
        assert!(
            message.contains(&format!("spec.{field}: Invalid value: {value:?}: field is immutable")),
            "{message}"
        );
    }
}

#[tokio::test]
async fn invalid_crds_are_rejected_with_paths() {
    let fixture = Fixture::new().await;
    let case = async |change: fn(&mut Value), wanted: &str| {
        let mut crd = crd("tanks", "Tank");
        change(&mut crd);
        let status = fixture.create_crd(crd).await.unwrap_err();
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
    assert!(fixture.served("v1", "tanks").is_none());
}

/// Check 32: instances are deleted first; the message names blocking ones; a new CRD of the same name starts empty.
#[tokio::test]
async fn check_32_deletion_removes_instances() {
    let fixture = Fixture::new().await;
    fixture.create_crd(crd("tanks", "Tank")).await.unwrap();
    let tanks = fixture.served("v1", "tanks").unwrap();
    fixture.create(&tanks, object("Tank", "free", json!({}))).await.unwrap();
    let mut held = object("Tank", "held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    fixture.create(&tanks, held).await.unwrap();
    let options = DeleteOptions::default();
    let deleted = fixture
        .objects
        .delete(&fixture.context, &fixture.crds, "", "tanks.example.com", &options)
        .await
        .unwrap();
    assert!(!deleted.removed);
    let first = deleted.version.decode();
    assert_eq!(first["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    assert_eq!(condition(&first, "Terminating")["reason"], "InstanceDeletionPending");
    let named = async || {
        let crd = fixture.crd("tanks.example.com").await;
        let terminating = condition(&crd, "Terminating");
        terminating["reason"] == "InstanceDeletionInProgress"
            && terminating.top_str("message").ends_with("waiting for d/held (finalizers: example.com/hold)")
    };
    fixture.eventually("the blocking object is named", named).await;
    let refused = fixture.create(&tanks, object("Tank", "late", json!({}))).await.unwrap_err();
    assert_eq!(refused.code, 403, "{}", refused.message);
    let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
    let release = fixture.objects.update(&fixture.context, &tanks, "d", "held", options, |old| {
        let mut object = old.cloned().unwrap_or_default();
        object["metadata"]["finalizers"] = json!([]);
        Ok(object)
    });
    assert!(release.await.unwrap().removed);
    let gone = async || fixture.objects.get(&fixture.crds, "", "tanks.example.com").is_err();
    fixture.eventually("the CRD is gone", gone).await;
    fixture.eventually("it is not served", async || fixture.served("v1", "tanks").is_none()).await;
    fixture.create_crd(crd("tanks", "Tank")).await.unwrap();
    let tanks = fixture.served("v1", "tanks").unwrap();
    assert!(fixture.objects.get(&tanks, "d", "held").is_err());
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
        let fixture = Fixture::over(Arc::new(MemoryStorage::new()), converters).await;
        fixture.create_crd(two_versions()).await.unwrap();
        let (v1, v2) = (fixture.served("v1", "tanks").unwrap(), fixture.served("v2", "tanks").unwrap());
        fixture.create(&v1, object("Tank", "a", json!({"size": 2}))).await.unwrap();
        let read = fixture.objects.get_value(&v2, "d", "a").await.unwrap();
        assert_eq!((read.api_version(), &read["spec"]["size"]), ("example.com/v2", &json!(wanted)));
        let mut other = object("Tank", "b", json!({"size": 4}));
        other["apiVersion"] = "example.com/v2".into();
        fixture.create(&v2, other).await.unwrap();
        let stored = fixture.objects.get(&v1, "d", "b").unwrap().decode();
        assert_eq!(stored.api_version(), "example.com/v1");
        assert_eq!(stored["spec"]["size"], json!(if wanted == 4 { 2 } else { 4 }));
    }
}

/// A store whose writes fail according to a script.
struct Scripted {
    inner: MemoryStorage,
    /// How many writes succeed, and how many fail after them.
    script: parking_lot::Mutex<(usize, usize)>,
    /// Whether to panic instead.
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
async fn a_failed_status_write_is_retried() {
    // The CRD itself is stored; writing its status fails twice.
    let storage = Scripted { inner: MemoryStorage::new(), script: (1, 2).into(), panics: false };
    let fixture = Fixture::over(Arc::new(storage), HashMap::new()).await;
    fixture.create_crd(crd("widgets", "Widget")).await.unwrap();
    assert!(fixture.served("v1", "widgets").is_some());
    fixture
        .eventually("Established", async || {
            condition(&fixture.crd("widgets.example.com").await, "Established")["status"] == "True"
        })
        .await;
    // The last write of a CRD's deletion fails as well.
    let storage = Scripted { inner: MemoryStorage::new(), script: (3, 2).into(), panics: false };
    let fixture = Fixture::over(Arc::new(storage), HashMap::new()).await;
    fixture.create_crd(crd("widgets", "Widget")).await.unwrap();
    let options = DeleteOptions::default();
    fixture
        .objects
        .delete(&fixture.context, &fixture.crds, "", "widgets.example.com", &options)
        .await
        .unwrap();
    fixture
        .eventually("gone", async || {
            fixture.objects.get_value(&fixture.crds, "", "widgets.example.com").await.is_err()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_is_repeated_after_a_panic() {
    let storage = Scripted { inner: MemoryStorage::new(), script: (1, 1).into(), panics: true };
    let fixture = Fixture::over(Arc::new(storage), HashMap::new()).await;
    fixture.create_crd(crd("widgets", "Widget")).await.unwrap();
    fixture
        .eventually("Established", async || {
            condition(&fixture.crd("widgets.example.com").await, "Established")["status"] == "True"
        })
        .await;
    assert!(fixture.served("v1", "widgets").is_some());
}

/// A second server with the same store serves the stored CRDs, and adds new defaults to old objects when they are read.
#[tokio::test]
async fn a_restart_serves_stored_crds() {
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let first = Fixture::over(storage.clone(), HashMap::new()).await;
    first.create_crd(crd("tanks", "Tank")).await.unwrap();
    let tanks = first.served("v1", "tanks").unwrap();
    first.create(&tanks, object("Tank", "a", json!({}))).await.unwrap();
    let add_default = |crd: &mut Value| {
        let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        spec["properties"]["color"] = json!({"type": "string", "default": "green"});
    };
    first.update_crd("tanks.example.com", add_default).await.unwrap();
    drop(first);
    let second = Fixture::over(storage, HashMap::new()).await;
    let tanks = second.served("v1", "tanks").expect("served at start");
    let read = second.objects.get_value(&tanks, "d", "a").await.unwrap();
    assert_eq!(read["spec"], json!({"size": 1, "color": "green"}));
}

/// Schemas contain arbitrary values (`default`, `enum`, `additionalProperties`), which are not unknown fields.
#[test]
fn fields_of_a_schema_are_not_unknown() {
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
