//! The default roles and bindings, and their update at start: missing parts are added, an administrator's additions are
//! kept, and `autoupdate: "false"` opts out. Names and rules: kubernetes
//! plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go.

use super::policy::{GROUP, Kind, Stored};
use super::rule::{self, Rule};
use serde_json::{Map, Value, json};

pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const DEFAULTS_LABEL: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const READ_WRITE: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// An object that the server ensures.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    pub kind: Kind,
    pub namespace: &'static str,
    pub name: String,
    pub object: Value,
}

/// The step that makes the live object contain at least the wanted content.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Keep,
    Create(Value),
    Update(Value),
    /// A binding to another role: roleRef is immutable, so the binding must be recreated.
    Replace(Value),
}

/// Decides the step for one object.
pub fn reconcile(live: Option<&Value>, wanted: &Value) -> Step {
    let Some(live) = live else { return Step::Create(wanted.clone()) };
    if live.pointer("/metadata/annotations").and_then(|a| a.get(AUTOUPDATE)).and_then(Value::as_str)
        == Some("false")
    {
        return Step::Keep;
    }
    if live.get("roleRef") != wanted.get("roleRef") {
        return Step::Replace(wanted.clone());
    }
    let mut merged = live.clone();
    for field in ["labels", "annotations"] {
        let Some(want) = wanted["metadata"].get(field).and_then(Value::as_object) else { continue };
        let have = &mut merged["metadata"][field];
        if !have.is_object() {
            *have = Value::Object(Map::new());
        }
        for (key, value) in want {
            have[key] = value.clone();
        }
    }
    if wanted.get("aggregationRule").is_some() {
        add_missing(&mut merged["aggregationRule"], &wanted["aggregationRule"], "clusterRoleSelectors");
    } else if wanted.get("rules").is_some() {
        let have: Stored = serde_json::from_value(live.clone()).unwrap_or_default();
        let want: Stored = serde_json::from_value(wanted.clone()).unwrap_or_default();
        let lacking = rule::compacted(&rule::missing(&have.rules, &want.rules));
        if !lacking.is_empty() {
            let mut all = live["rules"].as_array().cloned().unwrap_or_default();
            all.extend(lacking.iter().map(|r| json!(r)));
            merged["rules"] = Value::Array(all);
        }
    }
    if wanted.get("subjects").is_some() {
        add_missing(&mut merged, wanted, "subjects");
    }
    if merged == *live { Step::Keep } else { Step::Update(merged) }
}

fn add_missing(live: &mut Value, wanted: &Value, field: &str) {
    if !live.is_object() {
        *live = Value::Object(Map::new());
    }
    let mut have = live[field].as_array().cloned().unwrap_or_default();
    for item in wanted[field].as_array().into_iter().flatten() {
        if !have.contains(item) {
            have.push(item.clone());
        }
    }
    live[field] = Value::Array(have);
}

/// All objects, in the order of creation.
pub fn objects() -> Vec<Bootstrap> {
    let mut all = user_roles();
    all.extend(system_roles());
    for (name, role, subject) in [
        ("cluster-admin", "cluster-admin", group("system:masters")),
        ("system:discovery", "system:discovery", group("system:authenticated")),
        ("system:basic-user", "system:basic-user", group("system:authenticated")),
        ("system:monitoring", "system:monitoring", group("system:monitoring")),
        ("system:node-bootstrapper", "system:node-bootstrapper", group("system:bootstrappers")),
        (
            "system:kube-controller-manager",
            "system:kube-controller-manager",
            user("system:kube-controller-manager"),
        ),
        (
            "system:service-account-issuer-discovery",
            "system:service-account-issuer-discovery",
            group("system:serviceaccounts"),
        ),
    ] {
        all.push(cluster_binding(name, role, &[subject]));
    }
    let public = [group("system:authenticated"), group("system:unauthenticated")];
    all.push(cluster_binding("system:public-info-viewer", "system:public-info-viewer", &public));
    all
}

fn user_roles() -> Vec<Bootstrap> {
    vec![
        cluster_role("cluster-admin", &[], &Rule::full_authority()),
        aggregated("admin", &[], &["rbac.authorization.k8s.io/aggregate-to-admin"]),
        aggregated(
            "edit",
            &["rbac.authorization.k8s.io/aggregate-to-admin"],
            &["rbac.authorization.k8s.io/aggregate-to-edit"],
        ),
        aggregated(
            "view",
            &["rbac.authorization.k8s.io/aggregate-to-edit"],
            &["rbac.authorization.k8s.io/aggregate-to-view"],
        ),
        cluster_role(
            "system:aggregate-to-admin",
            &["rbac.authorization.k8s.io/aggregate-to-admin"],
            &to_admin(),
        ),
        cluster_role(
            "system:aggregate-to-edit",
            &["rbac.authorization.k8s.io/aggregate-to-edit"],
            &to_edit(),
        ),
        cluster_role(
            "system:aggregate-to-view",
            &["rbac.authorization.k8s.io/aggregate-to-view"],
            &to_view(),
        ),
    ]
}

fn to_admin() -> Vec<Rule> {
    vec![
        Rule::resources(&["create"], &["authorization.k8s.io"], &["localsubjectaccessreviews"]),
        Rule::resources(READ_WRITE, &[GROUP], &["roles", "rolebindings"]),
    ]
}

fn to_edit() -> Vec<Rule> {
    vec![
        Rule::resources(
            READ,
            &[""],
            &["pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "secrets", "services/proxy"],
        ),
        Rule::resources(&["impersonate"], &[""], &["serviceaccounts"]),
        Rule::resources(
            WRITE,
            &[""],
            &["pods", "pods/attach", "pods/proxy", "pods/exec", "pods/portforward"],
        ),
        Rule::resources(&["create"], &[""], &["pods/eviction"]),
        Rule::resources(
            WRITE,
            &[""],
            &[
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "serviceaccounts",
                "services",
                "services/proxy",
                "persistentvolumeclaims",
                "configmaps",
                "secrets",
                "events",
            ],
        ),
        Rule::resources(&["create"], &[""], &["serviceaccounts/token"]),
        Rule::resources(
            WRITE,
            &["apps"],
            &[
                "statefulsets",
                "statefulsets/scale",
                "daemonsets",
                "deployments",
                "deployments/scale",
                "deployments/rollback",
                "replicasets",
                "replicasets/scale",
            ],
        ),
        Rule::resources(WRITE, &["autoscaling"], &["horizontalpodautoscalers"]),
        Rule::resources(WRITE, &["batch"], &["jobs", "cronjobs"]),
        Rule::resources(WRITE, &["policy"], &["poddisruptionbudgets"]),
        Rule::resources(WRITE, &["networking.k8s.io"], &["networkpolicies", "ingresses"]),
        Rule::resources(READ_WRITE, &["coordination.k8s.io"], &["leases"]),
    ]
}

fn to_view() -> Vec<Rule> {
    vec![
        Rule::resources(
            READ,
            &[""],
            &[
                "pods",
                "pods/log",
                "pods/status",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "replicationcontrollers/status",
                "serviceaccounts",
                "services",
                "services/status",
                "endpoints",
                "persistentvolumeclaims",
                "persistentvolumeclaims/status",
                "configmaps",
                "limitranges",
                "resourcequotas",
                "resourcequotas/status",
                "bindings",
                "events",
                "namespaces",
                "namespaces/status",
            ],
        ),
        Rule::resources(READ, &["discovery.k8s.io"], &["endpointslices"]),
        Rule::resources(
            READ,
            &["apps"],
            &[
                "controllerrevisions",
                "statefulsets",
                "statefulsets/status",
                "statefulsets/scale",
                "daemonsets",
                "daemonsets/status",
                "deployments",
                "deployments/status",
                "deployments/scale",
                "replicasets",
                "replicasets/status",
                "replicasets/scale",
            ],
        ),
        Rule::resources(
            READ,
            &["autoscaling"],
            &["horizontalpodautoscalers", "horizontalpodautoscalers/status"],
        ),
        Rule::resources(READ, &["batch"], &["jobs", "cronjobs", "cronjobs/status", "jobs/status"]),
        Rule::resources(READ, &["policy"], &["poddisruptionbudgets", "poddisruptionbudgets/status"]),
        Rule::resources(READ, &["networking.k8s.io"], &["networkpolicies", "ingresses", "ingresses/status"]),
    ]
}

fn system_roles() -> Vec<Bootstrap> {
    let discovery = [
        "/livez",
        "/readyz",
        "/healthz",
        "/version",
        "/version/",
        "/openapi",
        "/openapi/*",
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
    ];
    vec![
        cluster_role("system:discovery", &[], &[Rule::urls(&["get"], &discovery)]),
        cluster_role(
            "system:public-info-viewer",
            &[],
            &[Rule::urls(&["get"], &["/livez", "/readyz", "/healthz", "/version", "/version/"])],
        ),
        cluster_role(
            "system:basic-user",
            &[],
            &[
                Rule::resources(
                    &["create"],
                    &["authorization.k8s.io"],
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                ),
                Rule::resources(&["create"], &["authentication.k8s.io"], &["selfsubjectreviews"]),
            ],
        ),
        cluster_role(
            "system:auth-delegator",
            &[],
            &[
                Rule::resources(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
                Rule::resources(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
            ],
        ),
        cluster_role(
            "system:monitoring",
            &[],
            &[Rule::urls(
                &["get"],
                &[
                    "/healthz",
                    "/healthz/*",
                    "/livez",
                    "/livez/*",
                    "/metrics",
                    "/metrics/slis",
                    "/readyz",
                    "/readyz/*",
                ],
            )],
        ),
        cluster_role(
            "system:service-account-issuer-discovery",
            &[],
            &[Rule::urls(
                &["get"],
                &[
                    "/.well-known/openid-configuration",
                    "/.well-known/openid-configuration/",
                    "/openid/v1/jwks",
                    "/openid/v1/jwks/",
                ],
            )],
        ),
        cluster_role(
            "system:node-bootstrapper",
            &[],
            &[Rule::resources(
                &["create", "get", "list", "watch"],
                &["certificates.k8s.io"],
                &["certificatesigningrequests"],
            )],
        ),
        cluster_role("system:node", &[], &node_rules()),
        cluster_role("system:kube-controller-manager", &[], &controller_manager_rules()),
    ]
}

fn node_rules() -> Vec<Rule> {
    vec![
        Rule::resources(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
        Rule::resources(
            &["create"],
            &["authorization.k8s.io"],
            &["localsubjectaccessreviews", "subjectaccessreviews"],
        ),
        Rule::resources(READ, &[""], &["services", "configmaps", "secrets", "pods"]),
        Rule::resources(&["create", "get", "list", "watch"], &[""], &["nodes"]),
        Rule::resources(&["patch", "update"], &[""], &["nodes", "nodes/status", "pods/status"]),
        Rule::resources(&["create", "delete"], &[""], &["pods"]),
        Rule::resources(&["create"], &[""], &["pods/eviction", "serviceaccounts/token"]),
        Rule::resources(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"]),
        Rule::resources(
            &["create", "get", "list", "watch"],
            &["certificates.k8s.io"],
            &["certificatesigningrequests"],
        ),
        Rule::resources(
            &["create", "delete", "get", "patch", "update"],
            &["coordination.k8s.io"],
            &["leases"],
        ),
    ]
}

fn controller_manager_rules() -> Vec<Rule> {
    vec![
        Rule::resources(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"]),
        Rule::resources(&["create"], &["coordination.k8s.io"], &["leases"]),
        Rule::resources(&["get", "update"], &["coordination.k8s.io"], &["leases"])
            .named(&["kube-controller-manager"]),
        Rule::resources(&["create"], &[""], &["secrets", "serviceaccounts", "serviceaccounts/token"]),
        Rule::resources(&["delete"], &[""], &["secrets"]),
        Rule::resources(&["get"], &[""], &["namespaces", "secrets", "serviceaccounts", "configmaps"]),
        Rule::resources(&["update"], &[""], &["secrets", "serviceaccounts"]),
        Rule::resources(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
        Rule::resources(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
        Rule::resources(&["list", "watch"], &["*"], &["*"]),
    ]
}

fn metadata(name: &str, labels: &[&str]) -> Value {
    let mut map = Map::new();
    map.insert(DEFAULTS_LABEL.0.into(), DEFAULTS_LABEL.1.into());
    for label in labels {
        map.insert((*label).into(), "true".into());
    }
    json!({"name": name, "labels": map, "annotations": {AUTOUPDATE: "true"}})
}

fn cluster_role(name: &str, labels: &[&str], rules: &[Rule]) -> Bootstrap {
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole",
        "metadata": metadata(name, labels), "rules": rules,
    });
    Bootstrap { kind: Kind::ClusterRole, namespace: "", name: name.into(), object }
}

fn aggregated(name: &str, labels: &[&str], selects: &[&str]) -> Bootstrap {
    let selectors: Vec<Value> = selects.iter().map(|s| json!({"matchLabels": {*s: "true"}})).collect();
    let mut role = cluster_role(name, labels, &[]);
    role.object["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
    role
}

fn cluster_binding(name: &str, role: &str, subjects: &[Value]) -> Bootstrap {
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata(name, &[]),
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}, "subjects": subjects,
    });
    Bootstrap { kind: Kind::ClusterRoleBinding, namespace: "", name: name.into(), object }
}

fn group(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "Group", "name": name})
}

fn user(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "User", "name": name})
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_binding_has_its_role() {
        let all = objects();
        let names: BTreeSet<(&str, &str)> =
            all.iter().map(|b| (b.kind.resource(), b.name.as_str())).collect();
        assert_eq!(names.len(), all.len());
        for b in all.iter().filter(|b| b.kind == Kind::ClusterRoleBinding) {
            let role = b.object["roleRef"]["name"].as_str().unwrap();
            assert!(names.contains(&("clusterroles", role)), "{role}");
        }
    }

    #[test]
    fn an_equal_role_is_kept_and_missing_rules_are_restored() {
        let wanted = cluster_role("r", &[], &to_view()).object;
        assert_eq!(reconcile(None, &wanted), Step::Create(wanted.clone()));
        assert_eq!(reconcile(Some(&wanted), &wanted), Step::Keep);

        let mut live = wanted.clone();
        live["rules"] = json!([Rule::resources(&["get"], &["x"], &["y"])]);
        live["metadata"]["labels"]["mine"] = "1".into();
        let Step::Update(merged) = reconcile(Some(&live), &wanted) else { panic!("no update") };
        assert_eq!(merged["metadata"]["labels"]["mine"], "1");
        assert_eq!(reconcile(Some(&merged), &wanted), Step::Keep, "unchanged after the first pass");
        let rules: Stored = serde_json::from_value(merged).unwrap();
        assert!(rule::missing(&rules.rules, &to_view()).is_empty());
        assert_eq!(rules.rules[0].api_groups, ["x"]);

        live["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        assert_eq!(reconcile(Some(&live), &wanted), Step::Keep);
    }

    #[test]
    fn bindings_gain_subjects_and_are_recreated_for_another_role() {
        let wanted = cluster_binding("b", "r", &[group("g")]).object;
        let mut live = wanted.clone();
        live["subjects"] = json!([user("u")]);
        let Step::Update(merged) = reconcile(Some(&live), &wanted) else { panic!("no update") };
        assert_eq!(merged["subjects"], json!([user("u"), group("g")]));
        live["roleRef"]["name"] = "other".into();
        assert_eq!(reconcile(Some(&live), &wanted), Step::Replace(wanted));
    }

    #[test]
    fn aggregated_roles_keep_their_computed_rules() {
        let wanted = user_roles().into_iter().find(|b| b.name == "edit").unwrap().object;
        let mut live = wanted.clone();
        live["rules"] = json!(to_edit());
        assert_eq!(reconcile(Some(&live), &wanted), Step::Keep);
    }
}
