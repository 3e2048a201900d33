//! All roles and bindings in memory, indexed by subject, so that a decision costs a few map lookups.

use super::rule::{Ask, Rule};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

pub const GROUP: &str = "rbac.authorization.k8s.io";
/// The group with all permissions, independent of roles.
pub const MASTERS: &str = "system:masters";

/// The four kinds of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Role, Kind::ClusterRole, Kind::RoleBinding, Kind::ClusterRoleBinding];

    pub fn from_resource(resource: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.resource() == resource)
    }

    pub fn resource(self) -> &'static str {
        match self {
            Kind::Role => "roles",
            Kind::ClusterRole => "clusterroles",
            Kind::RoleBinding => "rolebindings",
            Kind::ClusterRoleBinding => "clusterrolebindings",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    pub api_group: String,
    pub kind: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subject {
    pub kind: String,
    pub name: String,
    pub namespace: String,
    pub api_group: String,
}

/// The fields of a role or binding that the policy reads.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stored {
    #[serde(deserialize_with = "null_is_default")]
    pub rules: Vec<Rule>,
    pub role_ref: RoleRef,
    #[serde(deserialize_with = "null_is_default")]
    pub subjects: Vec<Subject>,
}

fn null_is_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(
    d: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// The caller.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub name: &'a str,
    pub groups: &'a [String],
}

impl Caller<'_> {
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|g| g == MASTERS)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// The binding that allowed it, or the bindings whose role is missing.
    pub reason: String,
}

#[derive(Debug, Default)]
pub struct Policy {
    cluster_roles: HashMap<String, Arc<[Rule]>>,
    roles: HashMap<String, HashMap<String, Arc<[Rule]>>>,
    cluster_bindings: Bindings,
    bindings: HashMap<String, Bindings>,
}

#[derive(Debug, Default)]
struct Bindings {
    by_name: HashMap<String, Binding>,
    by_subject: HashMap<SubjectKey, BTreeSet<String>>,
}

#[derive(Debug)]
struct Binding {
    role_ref: RoleRef,
    subjects: Vec<SubjectKey>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SubjectKey {
    User(String),
    Group(String),
    ServiceAccount(String, String),
}

impl Policy {
    /// Applies a change of the store; `None` means deleted. An object that cannot be parsed grants nothing.
    pub fn apply(&mut self, kind: Kind, namespace: &str, name: &str, object: Option<&[u8]>) {
        let stored = object.and_then(|o| serde_json::from_slice::<Stored>(o).ok());
        self.set(kind, namespace, name, stored);
    }

    pub fn set(&mut self, kind: Kind, namespace: &str, name: &str, stored: Option<Stored>) {
        match kind {
            Kind::ClusterRole => put(&mut self.cluster_roles, name, stored.map(|s| s.rules.into())),
            Kind::Role => {
                let roles = self.roles.entry(namespace.to_owned()).or_default();
                put(roles, name, stored.map(|s| s.rules.into()));
                if roles.is_empty() {
                    self.roles.remove(namespace);
                }
            }
            Kind::ClusterRoleBinding => self.cluster_bindings.set(name, stored, ""),
            Kind::RoleBinding => {
                let bindings = self.bindings.entry(namespace.to_owned()).or_default();
                bindings.set(name, stored, namespace);
                if bindings.by_name.is_empty() {
                    self.bindings.remove(namespace);
                }
            }
        }
    }

    /// Whether the caller has this permission. `namespace` is empty for cluster-scoped requests and for URLs.
    pub fn decide(&self, caller: Caller<'_>, namespace: &str, ask: Ask<'_>) -> Verdict {
        if caller.is_master() {
            return Verdict { allowed: true, reason: String::new() };
        }
        let mut reason = None;
        let missing = self.visit(caller, namespace, |rules, describe| {
            let hit = rules.iter().any(|r| r.allows(ask));
            if hit {
                reason = Some(format!("RBAC: allowed by {}", describe()));
            }
            !hit
        });
        match reason {
            Some(reason) => Verdict { allowed: true, reason },
            None => Verdict { allowed: false, reason: resolution_errors(&missing) },
        }
    }

    /// All rules of the caller in the namespace (cluster-wide if it is empty), and the missing roles to which bindings
    /// refer.
    pub fn rules_for(&self, caller: Caller<'_>, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let mut all = Vec::new();
        let missing = self.visit(caller, namespace, |rules, _| {
            all.extend(rules.iter().cloned());
            true
        });
        (all, missing)
    }

    /// The rules of a role, or `None` if it does not exist.
    pub fn role(&self, role_ref: &RoleRef, namespace: &str) -> Option<Arc<[Rule]>> {
        match role_ref.kind.as_str() {
            "ClusterRole" => self.cluster_roles.get(&role_ref.name).cloned(),
            "Role" => self.roles.get(namespace)?.get(&role_ref.name).cloned(),
            _ => None,
        }
    }

    /// Calls `see` with the rules of each binding that applies, until it returns false.
    fn visit(
        &self,
        caller: Caller<'_>,
        namespace: &str,
        mut see: impl FnMut(&[Rule], &dyn Fn() -> String) -> bool,
    ) -> Vec<String> {
        let keys = subject_keys(caller);
        let mut missing = Vec::new();
        let own = if namespace.is_empty() { None } else { self.bindings.get(namespace) };
        for (bindings, ns) in [(Some(&self.cluster_bindings), ""), (own, namespace)] {
            let Some(bindings) = bindings else { continue };
            for key in &keys {
                for name in bindings.by_subject.get(key).into_iter().flatten() {
                    let Some(binding) = bindings.by_name.get(name) else { continue };
                    let role = &binding.role_ref;
                    match self.role(role, ns) {
                        Some(rules) => {
                            if !see(&rules, &|| describe(name, ns, role, key)) {
                                return missing;
                            }
                        }
                        None => missing.push(format!(
                            "{}.{GROUP} \"{}\" not found",
                            role.kind.to_ascii_lowercase(),
                            role.name
                        )),
                    }
                }
            }
        }
        missing
    }
}

impl Bindings {
    fn set(&mut self, name: &str, stored: Option<Stored>, namespace: &str) {
        if let Some(old) = self.by_name.remove(name) {
            for key in old.subjects {
                if let Some(names) = self.by_subject.get_mut(&key) {
                    names.remove(name);
                    if names.is_empty() {
                        self.by_subject.remove(&key);
                    }
                }
            }
        }
        let Some(stored) = stored else { return };
        let subjects: Vec<SubjectKey> =
            stored.subjects.into_iter().filter_map(|s| key_of(s, namespace)).collect();
        for key in &subjects {
            self.by_subject.entry(key.clone()).or_default().insert(name.to_owned());
        }
        self.by_name.insert(name.to_owned(), Binding { role_ref: stored.role_ref, subjects });
    }
}

fn key_of(subject: Subject, binding_namespace: &str) -> Option<SubjectKey> {
    match subject.kind.as_str() {
        "User" => Some(SubjectKey::User(subject.name)),
        "Group" => Some(SubjectKey::Group(subject.name)),
        "ServiceAccount" => {
            let namespace =
                if subject.namespace.is_empty() { binding_namespace.to_owned() } else { subject.namespace };
            (!namespace.is_empty()).then_some(SubjectKey::ServiceAccount(namespace, subject.name))
        }
        _ => None,
    }
}

fn subject_keys(caller: Caller<'_>) -> Vec<SubjectKey> {
    let mut keys = vec![SubjectKey::User(caller.name.to_owned())];
    if let Some((ns, name)) = service_account_of(caller.name) {
        keys.push(SubjectKey::ServiceAccount(ns.to_owned(), name.to_owned()));
    }
    keys.extend(caller.groups.iter().map(|g| SubjectKey::Group(g.clone())));
    keys
}

/// Namespace and name, if the user is a ServiceAccount.
pub fn service_account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

fn describe(binding: &str, namespace: &str, role: &RoleRef, key: &SubjectKey) -> String {
    let subject = match key {
        SubjectKey::User(name) => format!("User {name:?}"),
        SubjectKey::Group(name) => format!("Group {name:?}"),
        SubjectKey::ServiceAccount(ns, name) => format!("ServiceAccount \"{name}/{ns}\""),
    };
    if namespace.is_empty() {
        format!("ClusterRoleBinding {binding:?} of {} {:?} to {subject}", role.kind, role.name)
    } else {
        format!("RoleBinding \"{binding}/{namespace}\" of {} {:?} to {subject}", role.kind, role.name)
    }
}

/// Upstream's text about bindings to missing roles, after the denial.
fn resolution_errors(missing: &[String]) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for m in missing {
        if !unique.contains(&m.as_str()) {
            unique.push(m);
        }
    }
    match unique.as_slice() {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        many => format!("RBAC: [{}]", many.join(", ")),
    }
}

fn put<V>(map: &mut HashMap<String, V>, key: &str, value: Option<V>) {
    match value {
        Some(v) => {
            map.insert(key.to_owned(), v);
        }
        None => {
            map.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(objects: &[(Kind, &str, &str, serde_json::Value)]) -> Policy {
        let mut p = Policy::default();
        for (kind, ns, name, object) in objects {
            p.apply(*kind, ns, name, Some(object.to_string().as_bytes()));
        }
        p
    }

    fn get_pod(p: &Policy, user: &str, groups: &[&str], ns: &str) -> Verdict {
        let groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        let ask = Ask::Resource { verb: "get", group: "", resource: "pods", subresource: "", name: "p" };
        p.decide(Caller { name: user, groups: &groups }, ns, ask)
    }

    fn reader() -> serde_json::Value {
        json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]})
    }

    fn binding(kind: &str, role: &str, subject: serde_json::Value) -> serde_json::Value {
        json!({"roleRef": {"apiGroup": GROUP, "kind": kind, "name": role}, "subjects": [subject]})
    }

    #[test]
    fn a_role_binding_to_a_cluster_role_grants_only_in_its_namespace() {
        let mut p = policy(&[
            (Kind::ClusterRole, "", "reader", reader()),
            (
                Kind::RoleBinding,
                "a",
                "b",
                binding("ClusterRole", "reader", json!({"kind": "User", "name": "u"})),
            ),
        ]);
        let v = get_pod(&p, "u", &[], "a");
        assert_eq!(v.reason, r#"RBAC: allowed by RoleBinding "b/a" of ClusterRole "reader" to User "u""#);
        assert!(v.allowed);
        assert!(!get_pod(&p, "u", &[], "b").allowed);
        assert!(!get_pod(&p, "u", &[], "").allowed);
        assert!(!get_pod(&p, "v", &[], "a").allowed);

        p.apply(Kind::RoleBinding, "a", "b", None);
        assert!(!get_pod(&p, "u", &[], "a").allowed, "a removed binding grants nothing");
    }

    #[test]
    fn groups_and_service_accounts_are_subjects() {
        let p = policy(&[
            (Kind::Role, "a", "reader", reader()),
            (
                Kind::RoleBinding,
                "a",
                "g",
                binding("Role", "reader", json!({"kind": "Group", "name": "devs"})),
            ),
            (
                Kind::RoleBinding,
                "a",
                "s",
                binding("Role", "reader", json!({"kind": "ServiceAccount", "name": "x"})),
            ),
            (
                Kind::RoleBinding,
                "a",
                "t",
                binding("Role", "reader", json!({"kind": "ServiceAccount", "name": "y", "namespace": "b"})),
            ),
        ]);
        assert!(get_pod(&p, "u", &["devs"], "a").allowed);
        assert!(get_pod(&p, "system:serviceaccount:a:x", &[], "a").allowed);
        assert!(!get_pod(&p, "system:serviceaccount:b:x", &[], "a").allowed);
        assert!(get_pod(&p, "system:serviceaccount:b:y", &[], "a").allowed);
    }

    #[test]
    fn a_binding_to_a_missing_role_grants_nothing_and_is_reported() {
        let mut p = policy(&[(
            Kind::ClusterRoleBinding,
            "",
            "b",
            binding("ClusterRole", "late", json!({"kind": "User", "name": "u"})),
        )]);
        let v = get_pod(&p, "u", &[], "a");
        assert_eq!(
            v,
            Verdict {
                allowed: false,
                reason: r#"RBAC: clusterrole.rbac.authorization.k8s.io "late" not found"#.into()
            }
        );
        p.apply(Kind::ClusterRole, "", "late", Some(reader().to_string().as_bytes()));
        assert!(get_pod(&p, "u", &[], "a").allowed);
        assert!(get_pod(&p, "u", &[], "").allowed);
    }

    #[test]
    fn masters_need_no_role_and_a_removed_subject_loses_its_permissions() {
        let mut p = policy(&[
            (Kind::ClusterRole, "", "reader", reader()),
            (
                Kind::ClusterRoleBinding,
                "",
                "b",
                binding("ClusterRole", "reader", json!({"kind": "User", "name": "u"})),
            ),
        ]);
        assert!(get_pod(&p, "root", &[MASTERS], "").allowed);
        let other = binding("ClusterRole", "reader", json!({"kind": "User", "name": "v"}));
        p.apply(Kind::ClusterRoleBinding, "", "b", Some(other.to_string().as_bytes()));
        assert!(!get_pod(&p, "u", &[], "").allowed);
        assert!(get_pod(&p, "v", &[], "").allowed);
    }

    #[test]
    fn service_account_names_are_parsed_strictly() {
        assert_eq!(service_account_of("system:serviceaccount:a:b"), Some(("a", "b")));
        for bad in
            ["system:serviceaccount:a", "system:serviceaccount::b", "system:serviceaccount:a:b:c", "a:b"]
        {
            assert_eq!(service_account_of(bad), None, "{bad}");
        }
    }
}
