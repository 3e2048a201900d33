//! Authorization (Checks of `kubernetes-api`).

use crate::harness::{Cluster, admin, config_map, on_both, user};
use drover_apiserver::UserInfo;
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]})
}

async fn bind(cluster: &Cluster, namespace: &str, role: &str, user: &str) {
    let path = format!("{RBAC}/namespaces/{namespace}/rolebindings");
    cluster.post(&path, binding(&format!("{user}-{role}"), "ClusterRole", role, user)).await.expect(201);
}

async fn ask(cluster: &Cluster, who: UserInfo, method: &str, path: &str) -> (u16, Value) {
    let answer = cluster.call(Some(who), method, path, None).await;
    (answer.code, answer.body)
}

#[tokio::test]
async fn denials_have_upstream_messages() {
    on_both(|cluster| async move {
        let jane = || user("jane");
        let (code, body) = ask(&cluster, jane(), "GET", "/api/v1/namespaces/default/pods").await;
        assert_eq!(code, 403);
        assert_eq!(
            body["message"],
            r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#
        );
        let (_, body) = ask(&cluster, jane(), "GET", "/apis/apps/v1/namespaces/default/deployments/x/scale").await;
        assert_eq!(
            body["message"],
            r#"deployments.apps "x" is forbidden: User "jane" cannot get resource "deployments/scale" in API group "apps" in the namespace "default""#
        );
        let (_, body) = ask(&cluster, jane(), "DELETE", "/api/v1/nodes/n").await;
        assert_eq!(
            body["message"],
            r#"nodes "n" is forbidden: User "jane" cannot delete resource "nodes" in API group "" at the cluster scope"#
        );
        let (code, body) = ask(&cluster, jane(), "GET", "/metrics").await;
        assert_eq!((code, body["message"].as_str().unwrap()), (403, r#"forbidden: User "jane" cannot get path "/metrics""#));
        assert_eq!(ask(&cluster, jane(), "GET", "/version").await.0, 200, "the bootstrap roles allow this to everyone");
        assert_eq!(ask(&cluster, jane(), "GET", "/api").await.0, 200);
    })
    .await;
}

#[tokio::test]
async fn a_binding_and_its_removal_apply_to_the_next_request() {
    on_both(|cluster| async move {
        let path = "/api/v1/namespaces/default/configmaps";
        assert_eq!(ask(&cluster, user("jane"), "GET", path).await.0, 403);
        cluster
            .eventually("view is aggregated", || async {
                let view = cluster.get(&format!("{RBAC}/clusterroles/view")).await.body;
                view["rules"].as_array().is_some_and(|r| !r.is_empty())
            })
            .await;
        bind(&cluster, "default", "view", "jane").await;
        assert_eq!(ask(&cluster, user("jane"), "GET", path).await.0, 200);
        assert_eq!(
            ask(&cluster, user("jane"), "GET", "/api/v1/namespaces/kube-system/configmaps").await.0,
            403
        );
        assert_eq!(ask(&cluster, user("jane"), "GET", "/api/v1/namespaces/default/secrets").await.0, 403);
        cluster
            .delete(&format!("{RBAC}/namespaces/default/rolebindings/jane-view"), json!({}))
            .await
            .expect(200);
        assert_eq!(ask(&cluster, user("jane"), "GET", path).await.0, 403);
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_35_users_can_only_grant_permissions_they_hold() {
    on_both(|cluster| async move {
        cluster.namespace("a").await;
        cluster.eventually("admin is aggregated", || async {
            let admin = cluster.get(&format!("{RBAC}/clusterroles/admin")).await.body;
            admin["rules"].as_array().is_some_and(|r| r.len() > 10)
        })
        .await;
        // The role edit alone does not allow writing roles; after adding that permission, the content is checked.
        bind(&cluster, "a", "edit", "ed").await;
        let roles = format!("{RBAC}/namespaces/a/roles");
        let bindings = format!("{RBAC}/namespaces/a/rolebindings");
        let pods = json!([{"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["pods", "nodes"]}]);
        let ed = || Some(user("ed"));
        cluster.call(ed(), "POST", &roles, Some(&role("r", pods.clone()))).await.expect(403);
        let writer = json!([{"verbs": ["*"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "resourceNames": []}]);
        cluster.post(&roles, role("role-writer", json!([{"verbs": ["create", "update", "get"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"]}]))).await.expect(201);
        cluster.post(&bindings, binding("ed-writes", "Role", "role-writer", "ed")).await.expect(201);

        let refused = cluster.call(ed(), "POST", &roles, Some(&role("r", pods))).await.expect(403);
        let message = refused["message"].as_str().unwrap();
        assert!(
            message.starts_with(
                "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"ed\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n"
            ),
            "{message}"
        );
        assert!(message.contains(r#"{APIGroups:[""], Resources:["nodes"], Verbs:["delete" "get"]}"#), "{message}");
        assert!(!message.contains(r#"Resources:["pods"]"#), "must not list permissions that are held: {message}");
        let less = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        cluster.call(ed(), "POST", &roles, Some(&role("less", less))).await.expect(201);

        let root = binding("root", "ClusterRole", "cluster-admin", "ed");
        let refused = cluster.call(ed(), "POST", &bindings, Some(&root)).await.expect(403);
        assert!(refused["message"].as_str().unwrap().contains("not currently held"), "{refused}");
        cluster.call(ed(), "POST", &bindings, Some(&binding("x", "ClusterRole", "absent", "ed"))).await.expect(404);
        cluster.call(ed(), "POST", &bindings, Some(&binding("y", "ClusterRole", "edit", "joe"))).await.expect(201);
        cluster.call(Some(admin()), "POST", &bindings, Some(&root)).await.expect(201);
        // Now ed is an administrator of this namespace only.
        cluster.call(ed(), "POST", &roles, Some(&role("all", writer))).await.expect(201);
        cluster.call(ed(), "POST", &format!("{RBAC}/clusterroles"), Some(&role("all", json!([])))).await.expect(403);
    })
    .await;
}

#[tokio::test]
async fn the_verbs_escalate_and_bind_skip_the_check_and_aggregation_needs_all_permissions() {
    on_both(|cluster| async move {
        let rules = json!([
            {"verbs": ["create", "escalate"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]},
            {"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterrolebindings"]},
            {"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["power"]},
        ]);
        cluster.post(&format!("{RBAC}/clusterroles"), role("granter", rules)).await.expect(201);
        cluster.post(&format!("{RBAC}/clusterrolebindings"), binding("g", "ClusterRole", "granter", "gus")).await.expect(201);
        let gus = || Some(user("gus"));
        let power = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
        cluster.call(gus(), "POST", &format!("{RBAC}/clusterroles"), Some(&role("power", power))).await.expect(201);
        let bindings = format!("{RBAC}/clusterrolebindings");
        cluster.call(gus(), "POST", &bindings, Some(&binding("p", "ClusterRole", "power", "x"))).await.expect(201);
        cluster.call(gus(), "POST", &bindings, Some(&binding("c", "ClusterRole", "cluster-admin", "x"))).await.expect(403);

        // Without escalate, an aggregation rule requires all permissions.
        let rules = json!([{"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]}]);
        cluster.post(&format!("{RBAC}/clusterroles"), role("creator", rules)).await.expect(201);
        cluster.post(&bindings, binding("h", "ClusterRole", "creator", "hal")).await.expect(201);
        let sum = json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"x": "y"}}]}});
        let refused = cluster.call(Some(user("hal")), "POST", &format!("{RBAC}/clusterroles"), Some(&sum)).await.expect(403);
        assert!(refused["message"].as_str().unwrap().ends_with("must have cluster-admin privileges to use an aggregationRule"));
    })
    .await;
}

#[tokio::test]
async fn aggregated_roles_follow_the_roles_they_select() {
    on_both(|cluster| async move {
        let roles = format!("{RBAC}/clusterroles");
        let sum = json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"x": "y"}}]}});
        cluster.post(&roles, sum).await.expect(201);
        let mut part = role("part", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"]}]));
        part["metadata"]["labels"] = json!({"x": "y"});
        cluster.post(&roles, part).await.expect(201);
        let count = || async { cluster.get(&format!("{roles}/sum")).await.body["rules"].as_array().map_or(0, Vec::len) };
        cluster.eventually("the rule is added", || async { count().await == 1 }).await;
        cluster.post(&format!("{RBAC}/clusterrolebindings"), binding("s", "ClusterRole", "sum", "jane")).await.expect(201);
        assert_eq!(ask(&cluster, user("jane"), "GET", "/api/v1/nodes/x").await.0, 404);
        cluster.delete(&format!("{roles}/part"), json!({})).await.expect(200);
        cluster.eventually("the rule is removed", || async { count().await == 0 }).await;
    })
    .await;
}

#[tokio::test]
async fn role_references_cannot_change() {
    on_both(|cluster| async move {
        bind(&cluster, "default", "view", "jane").await;
        let path = format!("{RBAC}/namespaces/default/rolebindings/jane-view");
        let refused = cluster.patch(&path, json!({"roleRef": {"name": "edit"}})).await.expect(422);
        assert!(refused["message"].as_str().unwrap().contains("cannot change roleRef"), "{refused}");
        let wrong = binding("w", "Role", "x", "jane");
        cluster.post(&format!("{RBAC}/clusterrolebindings"), wrong).await.expect(422);
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_36_a_named_secret_can_be_read_and_watched_but_not_listed() {
    on_both(|cluster| async move {
        let rules = json!([{"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["plan"]}]);
        cluster.post(&format!("{RBAC}/namespaces/default/roles"), role("one", rules)).await.expect(201);
        cluster
            .post(&format!("{RBAC}/namespaces/default/rolebindings"), binding("one", "Role", "one", "agent"))
            .await
            .expect(201);
        let secrets = "/api/v1/namespaces/default/secrets";
        cluster.post(secrets, json!({"metadata": {"name": "plan"}})).await.expect(201);
        cluster.post(secrets, json!({"metadata": {"name": "other"}})).await.expect(201);
        let agent = || user("agent");
        assert_eq!(ask(&cluster, agent(), "GET", &format!("{secrets}/plan")).await.0, 200);
        assert_eq!(ask(&cluster, agent(), "GET", &format!("{secrets}/other")).await.0, 403);
        assert_eq!(ask(&cluster, agent(), "GET", secrets).await.0, 403);
        let selected = format!("{secrets}?fieldSelector=metadata.name%3Dplan");
        let (code, list) = ask(&cluster, agent(), "GET", &selected).await;
        assert_eq!((code, list["items"].as_array().map(Vec::len)), (200, Some(1)));
        assert_eq!(ask(&cluster, agent(), "GET", &format!("{selected}&watch=1&timeoutSeconds=1")).await.0, 200);
        assert_eq!(ask(&cluster, agent(), "GET", &format!("{secrets}?watch=1&timeoutSeconds=1")).await.0, 403);
        assert_eq!(ask(&cluster, agent(), "DELETE", &format!("{secrets}/plan")).await.0, 403);
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_37_impersonation_needs_permission_and_replaces_the_user() {
    on_both(|cluster| async move {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let headers = [
            ("impersonate-user", "jane"),
            ("impersonate-group", "devs"),
            ("impersonate-extra-scopes", "view"),
        ];
        let refused = cluster.call_with(Some(user("bob")), "POST", path, Some(&review), &headers).await.expect(403);
        assert_eq!(
            refused["message"],
            r#"users "jane" is forbidden: User "bob" cannot impersonate resource "users" in API group "" at the cluster scope"#
        );
        let answer = cluster.call_with(Some(admin()), "POST", path, Some(&review), &headers).await.expect(201);
        assert_eq!(
            answer["status"]["userInfo"],
            json!({"username": "jane", "groups": ["devs", "system:authenticated"], "extra": {"scopes": ["view"]}})
        );
        let only_group = [("impersonate-group", "devs")];
        cluster.call_with(Some(admin()), "POST", path, Some(&review), &only_group).await.expect(400);
        // The permissions are those of the impersonated user.
        let as_jane = [("impersonate-user", "jane")];
        cluster.call_with(Some(admin()), "GET", "/api/v1/nodes", None, &as_jane).await.expect(403);

        let rules = json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["jane"]}]);
        cluster.post(&format!("{RBAC}/clusterroles"), role("imp", rules)).await.expect(201);
        cluster.post(&format!("{RBAC}/clusterrolebindings"), binding("imp", "ClusterRole", "imp", "bob")).await.expect(201);
        cluster.call_with(Some(user("bob")), "POST", path, Some(&review), &as_jane).await.expect(201);
        cluster.call_with(Some(user("bob")), "POST", path, Some(&review), &headers).await.expect(403);
        cluster.call_with(Some(user("bob")), "POST", path, Some(&review), &[("impersonate-user", "joe")]).await.expect(403);
    })
    .await;
}

#[tokio::test]
async fn access_reviews_for_the_caller_and_for_others() {
    on_both(|cluster| async move {
        let api = "/apis/authorization.k8s.io/v1";
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        cluster.post(&format!("{RBAC}/namespaces/default/roles"), role("pods", rules)).await.expect(201);
        cluster
            .post(&format!("{RBAC}/namespaces/default/rolebindings"), binding("p", "Role", "pods", "jane"))
            .await
            .expect(201);
        let attributes = |ns: &str| json!({"verb": "get", "resource": "pods", "namespace": ns});
        let own = |ns: &str| json!({"spec": {"resourceAttributes": attributes(ns)}});
        let review = |path: String, body: Value, who: UserInfo| {
            let cluster = &cluster;
            async move { cluster.call(Some(who), "POST", &path, Some(&body)).await }
        };
        let mine = format!("{api}/selfsubjectaccessreviews");
        let yes = review(mine.clone(), own("default"), user("jane")).await.expect(201);
        assert_eq!(yes["status"]["allowed"], true);
        assert_eq!(
            yes["status"]["reason"],
            r#"RBAC: allowed by RoleBinding "p/default" of Role "pods" to User "jane""#
        );
        let no = review(mine.clone(), own("kube-system"), user("jane")).await.expect(201);
        assert_eq!(no["status"], json!({"allowed": false}));
        review(mine, json!({"spec": {}}), user("jane")).await.expect(422);

        let others = json!({"spec": {"user": "jane", "resourceAttributes": attributes("default")}});
        let path = format!("{api}/subjectaccessreviews");
        review(path.clone(), others.clone(), user("bob")).await.expect(403);
        assert_eq!(
            review(path.clone(), others.clone(), admin()).await.expect(201)["status"]["allowed"],
            true
        );
        review(path, json!({"spec": {"resourceAttributes": attributes("default")}}), admin())
            .await
            .expect(422);

        let local = format!("{api}/namespaces/default/localsubjectaccessreviews");
        assert_eq!(review(local, others.clone(), admin()).await.expect(201)["status"]["allowed"], true);
        let elsewhere = format!("{api}/namespaces/kube-system/localsubjectaccessreviews");
        review(elsewhere, others, admin()).await.expect(400);

        let list = format!("{api}/selfsubjectrulesreviews");
        let rules = review(list, json!({"spec": {"namespace": "default"}}), user("jane")).await.expect(201);
        let resource_rules = rules["status"]["resourceRules"].as_array().unwrap();
        assert!(resource_rules.iter().any(|r| r["resources"] == json!(["pods"])), "{rules}");
        assert_eq!(
            cluster.get(&format!("{api}/selfsubjectaccessreviews")).await.code,
            405,
            "nothing is stored"
        );
    })
    .await;
}

#[tokio::test]
async fn bootstrap_roles_are_restored_at_the_next_start_unless_opted_out() {
    use crate::harness::Setup;
    use drover_apiserver::storage::{MemoryStorage, Storage};
    use std::sync::Arc;
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let cluster = Setup::new(storage.clone()).start().await;
    let path = |name: &str| format!("{RBAC}/clusterroles/{name}");
    cluster.patch(&path("system:basic-user"), json!({"rules": []})).await.expect(200);
    let off = json!({"rules": [], "metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}});
    cluster.patch(&path("system:discovery"), off).await.expect(200);
    cluster
        .eventually("aggregation", || async {
            cluster.get(&path("admin")).await.body["rules"].as_array().is_some_and(|r| r.len() > 10)
        })
        .await;
    cluster.stop().await;
    let cluster = Setup::new(storage.clone()).start().await;
    assert_ne!(cluster.get(&path("system:basic-user")).await.expect(200)["rules"], json!([]));
    assert_eq!(cluster.get(&path("system:discovery")).await.expect(200)["rules"], json!([]));
    cluster.stop().await;
    let before = storage.index().revision();
    let _again = Setup::new(storage.clone()).start().await;
    assert_eq!(storage.index().revision(), before, "a start without differences writes nothing");
}

#[tokio::test]
async fn an_invalid_binding_is_rejected_without_side_effects() {
    on_both(|cluster| async move {
        let path = format!("{RBAC}/clusterrolebindings");
        for junk in [
            json!({"metadata": {"name": "x"}, "roleRef": "text", "subjects": 7}),
            json!({"metadata": {"name": "x"}, "subjects": ["text", null]}),
            json!({"metadata": {"name": "x"}}),
        ] {
            let answer = cluster.post(&path, junk).await;
            assert!((400..500).contains(&answer.code), "{answer:?}");
        }
        cluster.post("/api/v1/namespaces/default/configmaps", config_map("ok", &[])).await.expect(201);
    })
    .await;
}
