//! Real CRDs: all CRDs of Cluster API compile, and validate objects as kube-apiserver does.
//!
//! The files come from the Go module of Cluster API, through Go's module cache. Without `go` or network, the test
//! prints that it is skipped and checks nothing.
#![allow(clippy::expect_used)]

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use drover_schema::{Path, Schema, aggregate};
use serde_json::{Value, json};

const MODULE: &str = "sigs.k8s.io/cluster-api@v1.13.4";

fn module_dir() -> Option<PathBuf> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", MODULE])
        .current_dir(std::env::temp_dir())
        .env("GOFLAGS", "-mod=mod")
        .output()
        .ok()?;
    let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(PathBuf::from(answer["Dir"].as_str()?))
}

fn crds() -> Option<Vec<Value>> {
    let Some(dir) = module_dir() else {
        eprintln!("SKIPPED: {MODULE} is not available (no go, or no network)");
        return None;
    };
    let mut crds = Vec::new();
    for base in
        ["config/crd/bases", "bootstrap/kubeadm/config/crd/bases", "controlplane/kubeadm/config/crd/bases"]
    {
        for entry in std::fs::read_dir(dir.join(base)).expect("the module has CRDs") {
            let text = std::fs::read_to_string(entry.expect("entry").path()).expect("readable");
            crds.push(serde_saphyr::from_str::<Value>(&text).expect("YAML"));
        }
    }
    assert!(crds.len() >= 15, "found {}", crds.len());
    Some(crds)
}

fn schema_of<'a>(crds: &'a [Value], name: &str, version: &str) -> &'a Value {
    let crd = crds.iter().find(|c| c["metadata"]["name"] == name).expect("the CRD exists");
    let versions = crd["spec"]["versions"].as_array().expect("versions");
    let version = versions.iter().find(|v| v["name"] == version).expect("the version exists");
    &version["schema"]["openAPIV3Schema"]
}

#[test]
fn all_crds_of_cluster_api_compile() {
    let Some(crds) = crds() else { return };
    let started = Instant::now();
    let mut compiled = 0;
    for crd in &crds {
        for version in crd["spec"]["versions"].as_array().expect("versions") {
            let result = Schema::compile(&version["schema"]["openAPIV3Schema"], &Path::root());
            if let Err(errors) = result {
                panic!("{} {}: {}", crd["metadata"]["name"], version["name"], aggregate(&errors));
            }
            compiled += 1;
        }
    }
    eprintln!("{compiled} versions of {} CRDs in {:?}", crds.len(), started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_cluster_is_validated_by_its_real_schema() {
    let Some(crds) = crds() else { return };
    let schema = schema_of(&crds, "clusters.cluster.x-k8s.io", "v1beta2");
    let schema = Schema::compile(schema, &Path::root()).expect("compiled above");
    let mut object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "c", "namespace": "d"},
        "spec": {
            "unknown": 1,
            "clusterNetwork": {"serviceDomain": "cluster.local", "pods": {"cidrBlocks": ["10.0.0.0/8"]}},
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "X", "name": "c"},
            "topology": {
                "classRef": {"name": "quick"}, "version": "v1.36.0",
                "variables": [{"name": "a", "value": {"any": ["thing"]}}]
            }
        }
    });
    assert_eq!(schema.prune(&mut object), ["spec.unknown"]);
    schema.default(&mut object).unwrap();
    assert_eq!(schema.validate(&object, None), []);
    assert_eq!(object["spec"]["topology"]["variables"][0]["value"], json!({"any": ["thing"]}));

    object["spec"]["infrastructureRef"]["kind"] = json!("");
    object["spec"]["topology"]["variables"] = json!([{"name": "a", "value": 1}, {"name": "a", "value": 2}]);
    let errors: Vec<_> = schema.validate(&object, None).iter().map(ToString::to_string).collect();
    assert!(
        errors.iter().any(|e| e.starts_with("spec.infrastructureRef.kind: Invalid value: \"\"")),
        "{errors:?}"
    );
    assert!(
        errors.iter().any(|e| e == "spec.topology.variables[1]: Duplicate value: {\"name\":\"a\"}"),
        "{errors:?}"
    );
}

/// CEL of Cluster API: reserved condition types in `readinessGates` of a MachineSet's template.
#[test]
fn rules_of_cluster_api_run() {
    let Some(crds) = crds() else { return };
    let schema = schema_of(&crds, "machinehealthchecks.cluster.x-k8s.io", "v1beta2");
    let schema = Schema::compile(schema, &Path::root()).expect("compiled above");
    let object = |kind: &str| {
        json!({"spec": {
            "clusterName": "c", "selector": {"matchLabels": {"a": "b"}},
            "checks": {"unhealthyMachineConditions": [{"type": kind, "status": "False", "timeoutSeconds": 300}]}
        }})
    };
    assert_eq!(schema.validate(&object("InfrastructureReady"), None), []);
    let errors: Vec<_> = schema.validate(&object("Ready"), None).iter().map(ToString::to_string).collect();
    assert!(!errors.is_empty(), "Ready is reserved");
    assert!(errors[0].contains("unhealthyMachineConditions[0].type"), "{errors:?}");
}
