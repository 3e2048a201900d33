//! Whether an apply would change anything, decided from the live object and the manager's entry in its managedFields.

use serde_json::{Map, Value};

/// True if `fields` (FieldsV1 of the manager's last apply) contains exactly the fields of `desired`, and `live` has
/// the desired value in every one of them.
///
/// Works without a schema: the structure of `fields` shows how the server treats each list and map. Anything that is
/// not understood counts as changed; then the server decides, and an unnecessary apply writes nothing.
pub(super) fn is_unchanged(desired: &Value, live: &Value, fields: &Value) -> bool {
    let (Some(desired), Some(live), Some(fields)) =
        (desired.as_object(), live.as_object(), fields.as_object())
    else {
        return false;
    };
    let top: Map<String, Value> = desired
        .iter()
        .filter(|(k, _)| *k != "apiVersion" && *k != "kind" && *k != "metadata")
        .map(clone)
        .collect();
    let mut top = Value::Object(top);
    let identity = ["name", "namespace", "generateName"];
    if let Some(meta) = desired.get("metadata").and_then(Value::as_object) {
        // Empty labels and annotations are not stored, and nobody owns them.
        let is_tracked =
            |(key, value): &(&String, &Value)| !identity.contains(&key.as_str()) && !is_empty_map(value);
        let tracked: Map<String, Value> = meta.iter().filter(is_tracked).map(clone).collect();
        if !tracked.is_empty() {
            top["metadata"] = Value::Object(tracked);
        }
    }
    let live = Value::Object(live.clone());
    same(&top, &live, &Value::Object(fields.clone()))
}

fn is_empty_map(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

fn clone((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

fn same(desired: &Value, live: &Value, fields: &Value) -> bool {
    let Some(fields) = fields.as_object() else { return false };
    let mut children = fields.iter().filter(|(key, _)| *key != ".").peekable();
    if children.peek().is_none() {
        // A leaf: a scalar, an atomic list or map, or an empty container. What others put into a map that we applied as
        // empty is theirs; an atomic map that others changed is no longer among our fields.
        return desired == live || is_empty_map(desired) && live.is_object();
    }
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            fields.keys().filter(|key| *key != ".").count() == desired.len()
                && desired.iter().all(|(key, value)| {
                    let below = fields.get(&format!("f:{key}"));
                    matches!((live.get(key), below), (Some(live), Some(below)) if same(value, live, below))
                })
        }
        (Value::Array(desired), Value::Array(live)) => {
            let children: Vec<_> = children.collect();
            children.len() == desired.len()
                && children.iter().all(|(element, below)| {
                    let found = (find(desired, element), find(live, element));
                    matches!(found, (Some(desired), Some(live)) if same(desired, live, below))
                })
        }
        _ => false,
    }
}

/// The element of a set (`v:…`) or an associative list (`k:{…}`) for a path element.
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
        assert!(is_unchanged(&desired(), &live(), &fields()));
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
            assert!(!is_unchanged(&desired, &live(), &fields()), "{desired}");
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
        assert!(is_unchanged(&desired, &live(), &fields));
        let mut live = live();
        live.as_object_mut().unwrap().remove("spec");
        assert!(!is_unchanged(&desired, &live, &fields));
    }

    #[test]
    fn a_field_that_someone_took_from_us_counts_as_a_change() {
        let mut fields = fields();
        fields["f:spec"].as_object_mut().unwrap().remove("f:replicas");
        assert!(!is_unchanged(&desired(), &live(), &fields));
    }
}
