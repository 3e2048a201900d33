//! Label selectors of `machineSelectorConfig` and `machineSelectorFiles`, matched against Machine labels.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// No selector matches everything.
pub fn matches(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    let Some(selector) = selector else { return true };
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key).is_some_and(|found| found == value));
    equal
        && selector.match_expressions.iter().flatten().all(|requirement| {
            let found = labels.get(&requirement.key);
            let listed = || {
                found.is_some_and(|value| requirement.values.iter().flatten().any(|wanted| wanted == value))
            };
            match requirement.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_four_operators() {
        let labels: BTreeMap<String, String> = [("a".to_owned(), "1".to_owned())].into();
        let check = |selector: serde_json::Value| {
            let selector: LabelSelector = serde_json::from_value(selector).unwrap();
            matches(Some(&selector), &labels)
        };
        assert!(matches(None, &labels));
        assert!(check(json!({})));
        assert!(check(json!({"matchLabels": {"a": "1"}})));
        assert!(!check(json!({"matchLabels": {"a": "2"}})));
        assert!(check(json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]})));
        assert!(!check(json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]})));
        assert!(check(json!({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]})));
        assert!(!check(json!({"matchExpressions": [{"key": "b", "operator": "Exists"}]})));
        assert!(!check(json!({"matchExpressions": [{"key": "a", "operator": "Odd"}]})));
    }
}
