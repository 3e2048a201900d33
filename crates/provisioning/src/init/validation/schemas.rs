//! `dynamicSchemaSpec`: the fields of the driver when a pool was created.
//!
//! A newer driver may have new fields with defaults. If they were used, every template would get another name, and
//! every machine would be replaced without need. Therefore the fields that existed when the pool was created are recorded
//! once, and a write without them (for instance a manifest that is applied again) does not remove them.

use drover_api::provisioning::v1::{RKEConfig, RKEMachinePool};
use serde_json::{Map, Value};

use crate::init::objects::template::CONFIG_API_VERSION;
use crate::keys::annotations;

const FIELD: &str = "dynamicSchemaSpec";

/// The pools with the fields of their drivers recorded; none if all were recorded before.
/// `schema` gives a Config kind's schema as JSON.
pub fn record(config: &RKEConfig, schema: impl Fn(&str) -> Option<String>) -> Option<Vec<RKEMachinePool>> {
    let mut pools = config.machine_pools.clone();
    let mut recorded = false;
    for pool in &mut pools {
        let reference = &pool.machine_config_ref;
        let foreign =
            reference.api_version.as_deref().is_some_and(|v| !v.is_empty() && v != CONFIG_API_VERSION);
        if foreign || !pool.dynamic_schema_spec.is_empty() {
            continue;
        }
        if let Some(spec) = schema(reference.kind.as_deref().unwrap_or_default()) {
            pool.dynamic_schema_spec = spec;
            recorded = true;
        }
    }
    recorded.then_some(pools)
}

/// Restores the recorded fields that an update of a Cluster dropped or changed, unless its annotation allows that. They
/// are not restored for a pool that changes to another driver. A pool that contains only fields which Drover wrote was
/// deleted by its owner (server-side apply leaves such remains), and is removed.
pub fn keep(cluster: &mut Value, old: &Value) {
    let allowed = cluster["metadata"]["annotations"][annotations::ALLOW_DYNAMIC_SCHEMA_DROP] == "true";
    let before = old.pointer("/spec/rkeConfig/machinePools").and_then(Value::as_array);
    let pools = cluster.pointer_mut("/spec/rkeConfig/machinePools").and_then(Value::as_array_mut);
    let (Some(before), Some(pools)) = (before, pools) else { return };
    pools.retain(|pool| !pool.as_object().is_some_and(is_remains));
    for pool in pools.iter_mut().filter_map(Value::as_object_mut) {
        let Some(was) = before.iter().find(|was| pool.get("name") == was.get("name")) else { continue };
        let Some(recorded) = was.get(FIELD).filter(|recorded| **recorded != "") else { continue };
        let kind = |pool: Option<&Value>| pool.and_then(|reference| reference.get("kind")).cloned();
        let same_driver = kind(pool.get("machineConfigRef")) == kind(was.get("machineConfigRef"));
        if !same_driver {
            if pool.get(FIELD) == Some(recorded) {
                pool.remove(FIELD);
            }
        } else if !allowed {
            pool.insert(FIELD.to_owned(), recorded.clone());
        }
    }
}

fn is_remains(pool: &Map<String, Value>) -> bool {
    !pool.contains_key("machineConfigRef")
        && pool.contains_key(FIELD)
        && pool.keys().all(|key| ["name", "quantity", FIELD].contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(pools: Value) -> Value {
        json!({"metadata": {"name": "demo"}, "spec": {"rkeConfig": {"machinePools": pools}}})
    }

    fn pool(name: &str, kind: &str, schema: &str) -> Value {
        json!({"name": name, "machineConfigRef": {"kind": kind, "name": "c"}, FIELD: schema})
    }

    #[test]
    fn provisioning_check_6_fields_are_recorded_once() {
        let config =
            |pools: Value| -> RKEConfig { serde_json::from_value(json!({"machinePools": pools})).unwrap() };
        let schema = |kind: &str| (kind == "LocalConfig").then(|| "now".to_owned());
        let pools = json!([
            pool("old", "LocalConfig", "then"),
            pool("new", "LocalConfig", ""),
            pool("x", "Other", "")
        ]);
        let recorded = record(&config(pools), schema).unwrap();
        let specs: Vec<&str> = recorded.iter().map(|pool| pool.dynamic_schema_spec.as_str()).collect();
        assert_eq!(specs, ["then", "now", ""], "the last kind is unknown");
        assert_eq!(record(&config(json!(recorded)), schema), None);
        let mut foreign = pool("p", "LocalConfig", "");
        foreign["machineConfigRef"]["apiVersion"] = json!("infrastructure.cluster.x-k8s.io/v1beta2");
        assert_eq!(record(&config(json!([foreign])), schema), None);
    }

    #[test]
    fn provisioning_check_7_what_an_update_leaves_out_is_put_back() {
        let old = cluster(json!([pool("w", "LocalConfig", "then"), pool("gone", "LocalConfig", "then")]));
        let mut dropped = json!({"name": "w", "machineConfigRef": {"kind": "LocalConfig", "name": "c"}});
        let after = |pool: &Value, allow: bool| {
            let mut new = cluster(json!([pool]));
            if allow {
                new["metadata"]["annotations"] = json!({annotations::ALLOW_DYNAMIC_SCHEMA_DROP: "true"});
            }
            keep(&mut new, &old);
            new["spec"]["rkeConfig"]["machinePools"].clone()
        };
        assert_eq!(after(&dropped, false), json!([pool("w", "LocalConfig", "then")]));
        assert_eq!(
            after(&pool("w", "LocalConfig", "other"), false),
            json!([pool("w", "LocalConfig", "then")])
        );
        assert_eq!(after(&dropped, true), json!([dropped]));
        // Another driver: the fields of the old one would hide its own.
        dropped["machineConfigRef"]["kind"] = json!("CloudConfig");
        assert_eq!(after(&pool("w", "CloudConfig", "then"), false), json!([dropped]));
        // What is left of a pool that was taken away.
        assert_eq!(after(&json!({"name": "gone", "quantity": 2, FIELD: "then"}), false), json!([]));
        assert_eq!(
            after(&json!({"name": "bad", "quantity": 2}), false),
            json!([{"name": "bad", "quantity": 2}])
        );
    }
}
