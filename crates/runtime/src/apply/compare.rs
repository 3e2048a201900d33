//! What would this apply change? Answered from the live object and our entry in its managedFields.

use serde_json::{Map, Value};

/// How an apply would change the live object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Difference {
    /// Not at all.
    None,
    /// Only in what the status reports to people: conditions and waits, but for whether a condition of [`DECISIVE`] is True
    /// one of [`FAILURES`] is False, and for [`RECORDS`].
    Report,
    /// In something that others act upon.
    Substance,
}

/// Conditions that controllers and people wait for.
const DECISIVE: [&str; 14] = [
    "Available",
    "Bootstrapped",
    "Connected",
    "Deleting",
    "HealthCheckSucceeded",
    // The planner elects the first server from the machines of which this is True.
    "InfrastructureReady",
    "NodeHealthy",
    "OwnerRemediated",
    "Paused",
    "Provisioned",
    "Ready",
    "Reconciled",
    "Removed",
    "UpToDate",
];

/// Conditions that are missing, or True, unless something is wrong.
const FAILURES: [&str; 1] = ["PlanApplied"];
/// Conditions that are the only record of something that is over.
const RECORDS: [&str; 1] = ["PlanSecretReadable"];

/// Compares `desired` with `live`, where `fields` is FieldsV1 of our last apply: nothing changes if it names exactly the
/// fields of `desired`, and `live` holds the desired value at every one of them.
///
/// Works without a schema: the shape of `fields` says how the server treats each list and map. Anything that is
/// not understood counts as changed; the server then decides, and a needless apply writes nothing. `reports` are further
/// fields of the status that only report.
pub(super) fn compare(desired: &Value, live: &Value, fields: &Value, reports: &[&str]) -> Difference {
    let (Some(desired), Some(fields)) = (desired.as_object(), fields.as_object()) else {
        return Difference::Substance;
    };
    let mut metadata = desired.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    // Empty labels and annotations are not stored, and have no owner.
    metadata.retain(|key, value| {
        !["name", "namespace", "generateName"].contains(&key.as_str()) && !is_empty_map(value)
    });
    let metadata = Some(Value::Object(metadata)).filter(|metadata| *metadata != Value::Object(Map::new()));
    let rest = desired.iter().filter(|(key, _)| !["apiVersion", "kind", "metadata"].contains(&key.as_str()));
    let sections =
        rest.map(|(key, value)| (key.as_str(), value)).chain(metadata.iter().map(|m| ("metadata", m)));
    let mut count = 0;
    let mut worst = Difference::None;
    for (key, desired) in sections {
        count += 1;
        worst = worst.max(match (live.get(key), fields.get(&format!("f:{key}"))) {
            (Some(live), Some(fields)) if key == "status" => compare_status(desired, live, fields, reports),
            (Some(live), Some(fields)) if same(desired, live, fields) => Difference::None,
            _ => Difference::Substance,
        });
    }
    // A section that is ours and no longer wanted.
    if children(fields).count() == count { worst } else { Difference::Substance }
}

/// Whether a first status only reports.
pub(super) fn only_reports(desired: &Value, reports: &[&str]) -> bool {
    let Some(status) = desired.get("status").and_then(Value::as_object) else { return false };
    let none = Map::new();
    compare_status(
        &Value::Object(status.clone()),
        &Value::Object(none.clone()),
        &Value::Object(none),
        reports,
    ) == Difference::Report
}

fn compare_status(desired: &Value, live: &Value, fields: &Value, reports: &[&str]) -> Difference {
    let (Some(desired), Some(fields)) = (desired.as_object(), fields.as_object()) else {
        return Difference::Substance;
    };
    let dropped = children(fields).filter_map(|(key, _)| key.strip_prefix("f:"));
    let dropped = dropped.filter(|key| !desired.contains_key(*key));
    let keys = desired.keys().map(String::as_str).chain(dropped);
    keys.map(|key| {
        let (desired, live, fields) = (desired.get(key), live.get(key), fields.get(&format!("f:{key}")));
        match (desired, live, fields) {
            (Some(desired), Some(live), Some(fields)) if same(desired, live, fields) => Difference::None,
            _ if key == "conditions" => compare_conditions(desired, live, fields),
            _ if ["deprecated", "waits"].contains(&key) || reports.contains(&key) => Difference::Report,
            _ => Difference::Substance,
        }
    })
    .max()
    .unwrap_or(Difference::None)
}

/// Of lists of conditions that differ. Conditions that others own do not count.
fn compare_conditions(desired: Option<&Value>, live: Option<&Value>, fields: Option<&Value>) -> Difference {
    let ours = fields.and_then(Value::as_object).map(|fields| fields.keys()).into_iter().flatten();
    let ours = ours.filter_map(|key| type_of(&serde_json::from_str(key.strip_prefix("k:")?).ok()?));
    let wanted = desired.and_then(Value::as_array).into_iter().flatten().filter_map(type_of);
    let differs = |type_: &str, status| has(desired, type_, status) != has(live, type_, status);
    let decisive = |type_: &String| {
        DECISIVE.contains(&type_.as_str()) && differs(type_, "True")
            || FAILURES.contains(&type_.as_str()) && differs(type_, "False")
            || RECORDS.contains(&type_.as_str()) && find_type(desired, type_) != find_type(live, type_)
    };
    if wanted.chain(ours).any(|type_| decisive(&type_)) { Difference::Substance } else { Difference::Report }
}

fn type_of(condition: &Value) -> Option<String> {
    condition.get("type")?.as_str().map(str::to_owned)
}

fn find_type<'a>(conditions: Option<&'a Value>, type_: &str) -> Option<&'a Value> {
    let mut list = conditions?.as_array()?.iter();
    list.find(|condition| condition.get("type").is_some_and(|t| t == type_))
}

fn has(conditions: Option<&Value>, type_: &str, status: &str) -> bool {
    find_type(conditions, type_).is_some_and(|c| c.get("status").is_some_and(|s| s == status))
}

fn is_empty_map(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

fn children(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    fields.iter().filter(|(key, _)| *key != ".")
}

fn same(desired: &Value, live: &Value, fields: &Value) -> bool {
    let Some(fields) = fields.as_object() else { return false };
    let mut owned = children(fields).peekable();
    if owned.peek().is_none() {
        // A leaf: a scalar, an atomic list or map, or an empty container. What others put into a map that we applied as
        // empty is theirs; an atomic map that others changed is no longer among our fields.
        return desired == live || is_empty_map(desired) && live.is_object();
    }
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            owned.count() == desired.len()
                && desired.iter().all(|(key, value)| {
                    let below = fields.get(&format!("f:{key}"));
                    matches!((live.get(key), below), (Some(live), Some(below)) if same(value, live, below))
                })
        }
        (Value::Array(desired), Value::Array(live)) => {
            let owned: Vec<_> = owned.collect();
            owned.len() == desired.len()
                && owned.iter().all(|(element, below)| {
                    let found = (find(desired, element), find(live, element));
                    matches!(found, (Some(desired), Some(live)) if same(desired, live, below))
                })
        }
        _ => false,
    }
}

/// The element of a set (`v:…`) or an associative list (`k:{…}`) that a path element names.
fn find<'a>(list: &'a [Value], element: &str) -> Option<&'a Value> {
    if let Some(value) = element.strip_prefix("v:") {
        let value: Value = serde_json::from_str(value).ok()?;
        return list.iter().find(|item| **item == value);
    }
    let keys: Map<String, Value> = serde_json::from_str(element.strip_prefix("k:")?).ok()?;
    list.iter().find(|item| keys.iter().all(|(key, value)| item.get(key) == Some(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn live() -> Value {
        json!({
            "metadata": {"name": "a", "labels": {"x": "1", "foreign": "2"}, "finalizers": ["f"], "uid": "u"},
            "spec": {"replicas": 3, "list": [1, 2], "other": true},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "reason": "R"},
                {"type": "Foreign", "status": "True"},
            ]},
        })
    }

    fn fields() -> Value {
        json!({
            "f:metadata": {"f:labels": {"f:x": {}}, "f:finalizers": {".": {}, "v:\"f\"": {}}},
            "f:spec": {"f:replicas": {}, "f:list": {}},
            "f:status": {"f:conditions": {
                "k:{\"type\":\"Ready\"}": {".": {}, "f:type": {}, "f:status": {}, "f:reason": {}},
            }},
        })
    }

    fn desired() -> Value {
        json!({
            "apiVersion": "v1", "kind": "T",
            "metadata": {"name": "a", "labels": {"x": "1"}, "finalizers": ["f"]},
            "spec": {"replicas": 3, "list": [1, 2]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "R"}]},
        })
    }

    #[test]
    fn equal_values_and_equal_ownership_are_unchanged() {
        assert_eq!(compare(&desired(), &live(), &fields(), &[]), Difference::None);
    }

    #[test]
    fn a_value_a_new_field_a_dropped_field_each_count_as_a_change() {
        type Edit = fn(&mut Value);
        let edits: [Edit; 7] = [
            |d| d["spec"]["replicas"] = json!(4),
            |d| d["spec"]["list"] = json!([2, 1]),
            |d| d["spec"]["new"] = json!(1),
            |d| drop(d["spec"].as_object_mut().unwrap().remove("replicas")),
            |d| d["metadata"]["labels"]["x"] = json!("2"),
            |d| d["status"]["conditions"][0]["status"] = json!("False"),
            |d| d["status"]["conditions"] = json!([]),
        ];
        for edit in edits {
            let mut desired = desired();
            edit(&mut desired);
            assert_ne!(compare(&desired, &live(), &fields(), &[]), Difference::None, "{desired}");
        }
    }

    #[test]
    fn a_map_that_we_applied_as_empty_may_be_filled_by_others() {
        let mut fields = fields();
        fields["f:metadata"].as_object_mut().unwrap().remove("f:labels");
        fields["f:spec"] = json!({});
        let mut desired = desired();
        desired["metadata"]["labels"] = json!({});
        desired["spec"] = json!({});
        assert_eq!(compare(&desired, &live(), &fields, &[]), Difference::None);
        let mut live = live();
        live.as_object_mut().unwrap().remove("spec");
        assert_ne!(compare(&desired, &live, &fields, &[]), Difference::None);
    }

    #[test]
    fn a_field_that_someone_took_from_us_counts_as_a_change() {
        let mut fields = fields();
        fields["f:spec"].as_object_mut().unwrap().remove("f:replicas");
        assert_eq!(compare(&desired(), &live(), &fields, &[]), Difference::Substance);
    }

    #[test]
    fn what_a_status_only_reports_is_told_apart_from_what_others_act_upon() {
        type Edit = fn(&mut Value);
        let status = |edit: Edit| {
            let (mut live, mut fields) = (live(), fields());
            live["status"]["phase"] = json!("Running");
            live["status"]["count"] = json!(1);
            live["status"]["conditions"][0]["message"] = json!("old");
            fields["f:status"]["f:phase"] = json!({});
            fields["f:status"]["f:count"] = json!({});
            fields["f:status"]["f:conditions"]["k:{\"type\":\"Ready\"}"]["f:message"] = json!({});
            let mut desired = live.clone();
            desired["status"]["conditions"] = json!([live["status"]["conditions"][0]]);
            desired.as_object_mut().unwrap().retain(|key, _| key == "status");
            fields.as_object_mut().unwrap().retain(|key, _| key == "f:status");
            assert_eq!(compare(&desired, &live, &fields, &[]), Difference::None);
            edit(&mut desired["status"]);
            compare(&desired, &live, &fields, &["count"])
        };
        let reports: [Edit; 5] = [
            |s| s["conditions"][0]["message"] = json!("new"),
            |s| {
                s["conditions"].as_array_mut().unwrap().push(json!({"type": "Progressing", "status": "True"}))
            },
            |s| s["waits"] = json!([{"reason": "R"}]),
            |s| s["count"] = json!(2),
            |s| s["conditions"].as_array_mut().unwrap().push(json!({"type": "Available", "status": "False"})),
        ];
        assert_eq!(reports.map(status), [Difference::Report; 5]);
        let substance: [Edit; 6] = [
            |s| {
                let record = json!({"type": "PlanSecretReadable", "status": "True", "message": "repaired"});
                s["conditions"].as_array_mut().unwrap().push(record)
            },
            |s| {
                let failure = json!({"type": "PlanApplied", "status": "False"});
                s["conditions"].as_array_mut().unwrap().push(failure)
            },
            |s| s["conditions"][0]["status"] = json!("False"),
            |s| s["conditions"] = json!([]),
            |s| s["phase"] = json!("Failed"),
            |s| drop(s.as_object_mut().unwrap().remove("phase")),
        ];
        assert_eq!(substance.map(status), [Difference::Substance; 6]);
    }
}
