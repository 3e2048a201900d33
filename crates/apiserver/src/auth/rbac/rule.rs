//! One RBAC rule: what it allows, and whether one set of rules covers another.
//! Behaviour: kubernetes plugin/pkg/auth/authorizer/rbac and component-helpers/auth/rbac/validation.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A `PolicyRule` of `rbac.authorization.k8s.io/v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub api_groups: Vec<String>,
    #[serde(
        rename = "nonResourceURLs",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_empty"
    )]
    pub non_resource_urls: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub resource_names: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub verbs: Vec<String>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(d)?.unwrap_or_default())
}

/// The permission to check against a rule.
#[derive(Clone, Copy, Debug)]
pub enum Ask<'a> {
    Resource { verb: &'a str, group: &'a str, resource: &'a str, subresource: &'a str, name: &'a str },
    Path { verb: &'a str, path: &'a str },
}

impl Rule {
    /// A rule for resources.
    pub fn resources(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Self {
        Rule {
            verbs: owned(verbs),
            api_groups: owned(groups),
            resources: owned(resources),
            ..Rule::default()
        }
    }

    /// A rule for non-resource URLs.
    pub fn urls(verbs: &[&str], urls: &[&str]) -> Self {
        Rule { verbs: owned(verbs), non_resource_urls: owned(urls), ..Rule::default() }
    }

    /// The same rule, limited to these object names.
    #[must_use]
    pub fn named(mut self, names: &[&str]) -> Self {
        self.resource_names = owned(names);
        self
    }

    pub fn allows(&self, ask: Ask<'_>) -> bool {
        match ask {
            Ask::Resource { verb, group, resource, subresource, name } => {
                has_or_all(&self.verbs, verb)
                    && has_or_all(&self.api_groups, group)
                    && self.matches_resource(resource, subresource)
                    && (self.resource_names.is_empty() || self.resource_names.iter().any(|n| n == name))
            }
            Ask::Path { verb, path } => {
                has_or_all(&self.verbs, verb) && self.non_resource_urls.iter().any(|u| url_matches(u, path))
            }
        }
    }

    fn matches_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|pattern| match pattern.split_once('/') {
            None if pattern == "*" => true,
            None => subresource.is_empty() && pattern == resource,
            Some((r, s)) => s == subresource && !subresource.is_empty() && (r == "*" || r == resource),
        })
    }

    /// All permissions that a role can grant; required to set an aggregation rule.
    pub fn full_authority() -> Vec<Rule> {
        vec![Rule::resources(&["*"], &["*"], &["*"]), Rule::urls(&["*"], &["*"])]
    }

    /// The form of upstream's messages: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
    pub fn compact_string(&self) -> String {
        let parts = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let parts: Vec<String> =
            parts.iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| format!("{k}:{}", quoted(v))).collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// The parts of `wanted` that `held` does not include; empty if it includes everything.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    wanted.iter().flat_map(breakdown).filter(|part| !held.iter().any(|h| covers(h, part))).collect()
}

/// Merges rules that differ only in their verbs, for shorter messages.
pub fn compacted(rules: &[Rule]) -> Vec<Rule> {
    let mut simple: BTreeMap<(String, String, Option<String>), BTreeSet<String>> = BTreeMap::new();
    let mut rest = Vec::new();
    for rule in rules {
        match (rule.api_groups.as_slice(), rule.resources.as_slice(), rule.resource_names.as_slice()) {
            ([g], [r], names) if rule.non_resource_urls.is_empty() && names.len() <= 1 => {
                simple
                    .entry((g.clone(), r.clone(), names.first().cloned()))
                    .or_default()
                    .extend(rule.verbs.iter().cloned());
            }
            _ => rest.push(rule.clone()),
        }
    }
    let joined = simple.into_iter().map(|((group, resource, name), verbs)| Rule {
        api_groups: vec![group],
        resources: vec![resource],
        resource_names: name.into_iter().collect(),
        verbs: verbs.into_iter().collect(),
        ..Rule::default()
    });
    joined.chain(rest).collect()
}

/// `["a" "b"]`, upstream's format of string lists.
pub fn quoted(list: &[String]) -> String {
    let items: Vec<String> = list.iter().map(|s| format!("{s:?}")).collect();
    format!("[{}]", items.join(" "))
}

fn breakdown(rule: &Rule) -> Vec<Rule> {
    let mut parts = Vec::new();
    for verb in &rule.verbs {
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let part = Rule {
                    verbs: vec![verb.clone()],
                    api_groups: vec![group.clone()],
                    resources: vec![resource.clone()],
                    ..Rule::default()
                };
                if rule.resource_names.is_empty() {
                    parts.push(part);
                } else {
                    parts.extend(
                        rule.resource_names
                            .iter()
                            .map(|n| Rule { resource_names: vec![n.clone()], ..part.clone() }),
                    );
                }
            }
        }
        for url in &rule.non_resource_urls {
            parts.push(Rule {
                verbs: vec![verb.clone()],
                non_resource_urls: vec![url.clone()],
                ..Rule::default()
            });
        }
    }
    parts
}

/// Whether `owner` allows all of `part`, which has one element of each kind.
fn covers(owner: &Rule, part: &Rule) -> bool {
    let all = |have: &[String], want: &[String]| want.iter().all(|w| has_or_all(have, w));
    let names = if part.resource_names.is_empty() {
        owner.resource_names.is_empty()
    } else {
        owner.resource_names.is_empty()
            || part.resource_names.iter().all(|n| owner.resource_names.contains(n))
    };
    all(&owner.verbs, &part.verbs)
        && all(&owner.api_groups, &part.api_groups)
        && part.resources.iter().all(|r| resource_covered(&owner.resources, r))
        && names
        && part.non_resource_urls.iter().all(|u| owner.non_resource_urls.iter().any(|o| url_matches(o, u)))
}

fn resource_covered(have: &[String], want: &str) -> bool {
    have.iter().any(|h| h == "*" || h == want)
        || want.split_once('/').is_some_and(|(_, sub)| have.iter().any(|h| h.strip_prefix("*/") == Some(sub)))
}

fn url_matches(pattern: &str, path: &str) -> bool {
    pattern == "*" || pattern == path || pattern.strip_suffix('*').is_some_and(|p| path.starts_with(p))
}

fn has_or_all(list: &[String], wanted: &str) -> bool {
    list.iter().any(|v| v == "*" || v == wanted)
}

fn owned(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask<'a>(verb: &'a str, group: &'a str, resource: &'a str, sub: &'a str, name: &'a str) -> Ask<'a> {
        Ask::Resource { verb, group, resource, subresource: sub, name }
    }

    #[test]
    fn a_rule_matches_as_upstream_does() {
        let pods = Rule::resources(&["get"], &[""], &["pods"]);
        let sub = Rule::resources(&["get"], &[""], &["pods/log"]);
        let any_status = Rule::resources(&["update"], &["*"], &["*/status"]);
        let star = Rule::resources(&["*"], &["*"], &["*"]);
        let one = Rule::resources(&["get", "list", "watch"], &[""], &["secrets"]).named(&["s"]);
        let table: &[(&Rule, Ask<'_>, bool)] = &[
            (&pods, ask("get", "", "pods", "", "x"), true),
            (&pods, ask("list", "", "pods", "", ""), false),
            (&pods, ask("get", "apps", "pods", "", "x"), false),
            (&pods, ask("get", "", "pods", "log", "x"), false),
            (&sub, ask("get", "", "pods", "log", "x"), true),
            (&sub, ask("get", "", "pods", "", "x"), false),
            (&any_status, ask("update", "apps", "deployments", "status", "x"), true),
            (&any_status, ask("update", "apps", "deployments", "", "x"), false),
            (&any_status, ask("update", "apps", "deployments", "scale", "x"), false),
            (&star, ask("impersonate", "", "users", "", "root"), true),
            (&star, ask("get", "", "pods", "log", "x"), true),
            (&star, Ask::Path { verb: "get", path: "/healthz" }, false),
            (&one, ask("get", "", "secrets", "", "s"), true),
            (&one, ask("get", "", "secrets", "", "t"), false),
            (&one, ask("watch", "", "secrets", "", "s"), true),
            (&one, ask("list", "", "secrets", "", ""), false),
        ];
        for (rule, ask, want) in table {
            assert_eq!(rule.allows(*ask), *want, "{rule:?} {ask:?}");
        }
    }

    #[test]
    fn urls_match_exactly_or_by_trailing_star() {
        let rule = Rule::urls(&["get"], &["/healthz", "/api/*"]);
        for (path, want) in [
            ("/healthz", true),
            ("/healthz/ping", false),
            ("/api/", true),
            ("/api/v1", true),
            ("/api", false),
        ] {
            assert_eq!(rule.allows(Ask::Path { verb: "get", path }), want, "{path}");
        }
        assert!(!rule.allows(Ask::Path { verb: "post", path: "/healthz" }));
    }

    #[test]
    fn covering_is_checked_part_by_part() {
        let held = [
            Rule::resources(&["get", "list"], &[""], &["pods"]),
            Rule::resources(&["*"], &["apps"], &["*"]),
            Rule::resources(&["update"], &[""], &["*/status"]),
            Rule::resources(&["get"], &[""], &["secrets"]).named(&["a", "b"]),
            Rule::urls(&["get"], &["/api/*"]),
        ];
        let wanted = |r: Rule| missing(&held, &[r]);
        assert!(wanted(Rule::resources(&["get", "list"], &[""], &["pods"])).is_empty());
        assert!(wanted(Rule::resources(&["patch"], &["apps"], &["deployments", "x/scale"])).is_empty());
        assert!(wanted(Rule::resources(&["update"], &[""], &["pods/status"])).is_empty());
        assert!(wanted(Rule::resources(&["get"], &[""], &["secrets"]).named(&["a"])).is_empty());
        assert!(wanted(Rule::urls(&["get"], &["/api/v1"])).is_empty());

        let lacking = wanted(Rule::resources(&["get", "delete"], &[""], &["pods", "secrets"]));
        let text: Vec<String> = compacted(&lacking).iter().map(Rule::compact_string).collect();
        assert_eq!(
            text,
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}"#,
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["delete" "get"]}"#
            ]
        );
        assert_eq!(
            wanted(Rule::resources(&["get"], &[""], &["secrets"])).len(),
            1,
            "all names include more than two"
        );
        assert_eq!(wanted(Rule::urls(&["get"], &["/apis"])).len(), 1);
        assert_eq!(missing(&held, &Rule::full_authority()).len(), 2);
        assert!(missing(&Rule::full_authority(), &held).is_empty());
    }

    #[test]
    fn a_rule_parses_null_lists_and_serializes_with_upstream_names() {
        let rule: Rule =
            serde_json::from_str(r#"{"verbs":["get"],"nonResourceURLs":["/x"],"resources":null}"#).unwrap();
        assert_eq!(serde_json::to_string(&rule).unwrap(), r#"{"nonResourceURLs":["/x"],"verbs":["get"]}"#);
    }
}
