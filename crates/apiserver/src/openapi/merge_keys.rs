//! How lists and maps of built-in types are merged, for the `x-kubernetes-*` extensions of their schemas.
//!
//! The source is the type table of server-side apply; it is read once, for the few fields with extensions.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Value, json};

/// Extensions of one field.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Extensions(pub(super) Vec<(&'static str, Value)>);

static TABLE: LazyLock<HashMap<&'static str, HashMap<&'static str, Extensions>>> =
    LazyLock::new(|| parse(include_str!("../patch/builtin_types.txt")));

/// Unions: a patch that sets one member must not keep the others. The table does not contain this, because only clients
/// that create strategic patches need it.
static RETAIN_KEYS: LazyLock<[((&'static str, &'static str), Extensions); 3]> = LazyLock::new(|| {
    let union_list = || {
        Extensions(vec![
            ("x-kubernetes-list-type", json!("map")),
            ("x-kubernetes-list-map-keys", json!(["name"])),
            ("x-kubernetes-patch-strategy", json!("merge,retainKeys")),
            ("x-kubernetes-patch-merge-key", json!("name")),
        ])
    };
    let strategy = Extensions(vec![("x-kubernetes-patch-strategy", json!("retainKeys"))]);
    [
        (("io.k8s.api.core.v1.PodSpec", "volumes"), union_list()),
        (("io.k8s.api.core.v1.PodSpec", "resourceClaims"), union_list()),
        (("io.k8s.api.apps.v1.DeploymentSpec", "strategy"), strategy),
    ]
});

/// The extensions of `field` of a component such as `io.k8s.api.core.v1.PodSpec`.
pub(super) fn of(component: &str, field: &str) -> Option<&'static Extensions> {
    if let Some((_, strategy)) = RETAIN_KEYS.iter().find(|(at, _)| *at == (component, field)) {
        return Some(strategy);
    }
    // The table uses the last three parts as the name: `core.v1.PodSpec`.
    let start = component.rmatch_indices('.').nth(2).map_or(0, |(at, _)| at + 1);
    TABLE.get(&component[start..])?.get(field)
}

fn parse(text: &'static str) -> HashMap<&'static str, HashMap<&'static str, Extensions>> {
    let mut table = HashMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        if words.next() != Some("type") {
            continue;
        }
        let Some(name) = words.next() else { continue };
        let fields: HashMap<_, _> = words
            .filter_map(|word| word.split_once(':'))
            .map(|(field, kind)| (field, extensions(kind)))
            .filter(|(_, extensions)| !extensions.0.is_empty())
            .collect();
        if !fields.is_empty() {
            table.insert(name, fields);
        }
    }
    table
}

/// `by(name;@…)~name` is a list of type map with a strategic merge key, `set(s)~` a merged set; `~!` is replaced.
fn extensions(kind: &str) -> Extensions {
    let mut found = Vec::new();
    if let Some(keys) = kind.strip_prefix("by(").and_then(|rest| rest.split_once(';')).map(|(keys, _)| keys) {
        let keys: Vec<&str> = keys.split(',').map(|key| key.split('=').next().unwrap_or(key)).collect();
        found.push(("x-kubernetes-list-type", json!("map")));
        found.push(("x-kubernetes-list-map-keys", json!(keys)));
    } else if kind.starts_with("set(") {
        found.push(("x-kubernetes-list-type", json!("set")));
    } else if kind.starts_with("list(") {
        found.push(("x-kubernetes-list-type", json!("atomic")));
    } else if kind.starts_with("atomicmap(") {
        found.push(("x-kubernetes-map-type", json!("atomic")));
    }
    match kind.split_once('~').map(|(_, key)| key) {
        None => {}
        Some("!") => found.push(("x-kubernetes-patch-strategy", json!("replace"))),
        Some(key) => {
            found.push(("x-kubernetes-patch-strategy", json!("merge")));
            if !key.is_empty() {
                found.push(("x-kubernetes-patch-merge-key", json!(key)));
            }
        }
    }
    Extensions(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_merge_by_name() {
        let found = of("io.k8s.api.core.v1.PodSpec", "containers").expect("known");
        assert!(found.0.contains(&("x-kubernetes-list-type", json!("map"))));
        assert!(found.0.contains(&("x-kubernetes-list-map-keys", json!(["name"]))));
        assert!(found.0.contains(&("x-kubernetes-patch-strategy", json!("merge"))));
        assert!(found.0.contains(&("x-kubernetes-patch-merge-key", json!("name"))));
        let finalizers = of("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers").expect("known");
        assert!(finalizers.0.contains(&("x-kubernetes-patch-strategy", json!("merge"))));
    }
}
