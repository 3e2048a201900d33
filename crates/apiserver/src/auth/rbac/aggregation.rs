//! `aggregationRule`: the rules of a ClusterRole are the union of those of the roles that its selectors match.

use super::rule::Rule;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AggregationRule {
    pub cluster_role_selectors: Vec<Selector>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    pub match_labels: BTreeMap<String, String>,
    pub match_expressions: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Requirement {
    pub key: String,
    pub operator: String,
    pub values: Vec<String>,
}

/// The fields of a ClusterRole that the controller reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Role {
    pub labels: BTreeMap<String, String>,
    pub rules: Vec<Rule>,
    pub aggregation: Option<AggregationRule>,
}

impl Role {
    pub fn parse(object: &[u8]) -> Option<Role> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Raw {
            #[serde(default)]
            metadata: Metadata,
            #[serde(default)]
            rules: Option<Vec<Rule>>,
            #[serde(default)]
            aggregation_rule: Option<AggregationRule>,
        }
        #[derive(Default, Deserialize)]
        struct Metadata {
            #[serde(default)]
            labels: Option<BTreeMap<String, String>>,
        }
        let raw: Raw = serde_json::from_slice(object).ok()?;
        Some(Role {
            labels: raw.metadata.labels.unwrap_or_default(),
            rules: raw.rules.unwrap_or_default(),
            aggregation: raw.aggregation_rule,
        })
    }
}

/// The rules that the role should have, ordered by the name of the contributing role and without duplicates. `None` if
/// the role does not aggregate.
pub fn desired_rules(name: &str, roles: &BTreeMap<String, Role>) -> Option<Vec<Rule>> {
    let aggregation = roles.get(name)?.aggregation.as_ref()?;
    let mut rules: Vec<Rule> = Vec::new();
    for selector in &aggregation.cluster_role_selectors {
        for (other, role) in roles {
            if other == name || !selector.matches(&role.labels) {
                continue;
            }
            for rule in &role.rules {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Some(rules)
}

impl Selector {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.match_expressions.iter().all(|r| r.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|v| self.values.contains(v)),
            "NotIn" => value.is_none_or(|v| !self.values.contains(v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn role(object: serde_json::Value) -> Role {
        Role::parse(object.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn rules_are_the_union_by_name_without_duplicates() {
        let get = |r: &str| json!({"verbs": ["get"], "apiGroups": [""], "resources": [r]});
        let labels = json!({"to": "view"});
        let mut roles = BTreeMap::from([
            ("b".to_owned(), role(json!({"metadata": {"labels": labels}, "rules": [get("y"), get("x")]}))),
            ("a".to_owned(), role(json!({"metadata": {"labels": labels}, "rules": [get("x")]}))),
            ("c".to_owned(), role(json!({"metadata": {}, "rules": [get("z")]}))),
            (
                "view".to_owned(),
                role(json!({"metadata": {"labels": labels}, "rules": null,
                    "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "view"}}]}})),
            ),
        ]);
        let want: Vec<Rule> =
            vec![Rule::resources(&["get"], &[""], &["x"]), Rule::resources(&["get"], &[""], &["y"])];
        assert_eq!(desired_rules("view", &roles), Some(want));
        assert_eq!(desired_rules("a", &roles), None);
        roles.remove("b");
        assert_eq!(desired_rules("view", &roles).unwrap().len(), 1);
    }

    #[test]
    fn selectors_support_expressions() {
        let labels = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        for (operator, values, want) in [
            ("In", vec!["v"], true),
            ("In", vec!["w"], false),
            ("NotIn", vec!["v"], false),
            ("Exists", vec![], true),
            ("DoesNotExist", vec![], false),
            ("Odd", vec![], false),
        ] {
            let r = Requirement {
                key: "k".into(),
                operator: operator.into(),
                values: values.into_iter().map(str::to_owned).collect(),
            };
            assert_eq!(r.matches(&labels), want, "{operator}");
        }
    }
}
