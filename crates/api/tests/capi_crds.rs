//! The Cluster API CRDs equal those of the Go module, except for the descriptions.
//!
//! The module comes from Go's cache or proxy. Without Go, the test prints a message and passes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

const MODULE: &str = "sigs.k8s.io/cluster-api@v1.13.4";

#[test]
fn capi_crds_equal_those_of_the_go_module() {
    let Some(bases) = crd_bases() else { return };
    let mut differences = Vec::new();
    let mut compared = 0;
    for crd in drover_api::crds().into_iter().filter(|crd| crd.spec.group == "cluster.x-k8s.io") {
        let file = bases.join(format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural));
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let theirs: Value = serde_saphyr::from_str(&text).unwrap();
        let ours = serde_json::to_value(&crd).unwrap();
        for key in ["names", "scope"] {
            compare(
                &format!("{}/{key}", crd.spec.names.kind),
                &ours["spec"][key],
                &theirs["spec"][key],
                &mut differences,
            );
        }
        let (ours, theirs) = (version(&ours), version(&theirs));
        for key in ["schema", "subresources", "additionalPrinterColumns", "served", "storage"] {
            let path = format!("{}/{key}", crd.spec.names.kind);
            compare(&path, &ours[key], &theirs[key], &mut differences);
        }
        compared += 1;
    }
    assert_eq!(compared, 5, "Cluster, Machine, MachineDeployment, MachineHealthCheck, MachineSet");
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

fn version(crd: &Value) -> &Value {
    let versions = crd["spec"]["versions"].as_array().unwrap();
    versions.iter().find(|version| version["name"] == "v1beta2").unwrap()
}

/// Everything is compared except descriptions; lists of names are compared as sets.
fn compare(path: &str, ours: &Value, theirs: &Value, differences: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let prose = key == "description" && (a.get(key).is_none_or(Value::is_string));
                // controller-gen writes defaults without effect: an empty list of columns, a priority of zero.
                let (x, y) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                let same_priority = key == "priority" && is_zero(x) && is_zero(y);
                if !prose && !same_priority {
                    compare(&format!("{path}/{key}"), x, y, differences);
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if path.ends_with("/required") || path.ends_with("/enum") => {
            let set = |values: &[Value]| values.iter().map(Value::to_string).collect::<BTreeSet<_>>();
            if set(a) != set(b) {
                differences.push(format!("{path}: ours {ours}, theirs {theirs}"));
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (x, y)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}/{index}"), x, y, differences);
            }
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => {}
        _ if ours == theirs => {}
        _ => differences.push(format!("{path}: ours {ours}, theirs {theirs}")),
    }
}

fn is_zero(value: &Value) -> bool {
    value.is_null() || value == 0
}

fn crd_bases() -> Option<PathBuf> {
    let output = match Command::new("go").args(["mod", "download", "-json", MODULE]).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("SKIPPED: comparing CRDs with {MODULE} needs go: {error}");
            return None;
        }
    };
    let module: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match module["Dir"].as_str() {
        Some(dir) => Some(PathBuf::from(dir).join("config/crd/bases")),
        None => {
            eprintln!("SKIPPED: {MODULE} could not be downloaded: {}", module["Error"]);
            None
        }
    }
}
