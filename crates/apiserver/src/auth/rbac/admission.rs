//! Escalation checks for writes to roles and bindings: callers can only grant permissions that they hold.
//! Behaviour: kubernetes pkg/registry/rbac/{escalation_check,validation/rule}.go and */policybased.

use super::authorizer::Rbac;
use super::policy::{GROUP, Kind, RoleRef, Stored};
use super::rule::{self, Rule};
use crate::admission::{Admission, AdmissionRequest, Operation};
use crate::identity::{Attributes, Authorizer, UserInfo};
use crate::resources::Resource;
use crate::status::{FieldError, GroupName, Status};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Checks writes to `rbac.authorization.k8s.io`.
pub struct RbacAdmission {
    rbac: Arc<Rbac>,
    /// Checks the verbs `escalate` and `bind`; this is the server's complete authorizer, not only RBAC.
    authorizer: Arc<dyn Authorizer>,
}

impl RbacAdmission {
    /// Creates the hook.
    pub fn new(rbac: Arc<Rbac>, authorizer: Arc<dyn Authorizer>) -> Self {
        Self { rbac, authorizer }
    }

    async fn may(
        &self,
        request: &AdmissionRequest<'_>,
        verb: &str,
        resource: &str,
        name: &str,
    ) -> Result<bool, Status> {
        let attributes = Attributes {
            user: request.user.clone(),
            verb: verb.into(),
            group: GROUP.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: request.namespace.into(),
            name: name.into(),
            resource_request: true,
            ..Attributes::default()
        };
        Ok(self.authorizer.authorize(&attributes).await?.allowed)
    }

    async fn check_role(
        &self,
        kind: Kind,
        request: &AdmissionRequest<'_>,
        object: &Value,
    ) -> Result<(), Status> {
        if request.user.in_group(super::policy::MASTERS)
            || self.may(request, "escalate", kind.resource(), request.name).await?
        {
            return Ok(());
        }
        let about = GroupName { group: GROUP, name: kind.resource() };
        let aggregates =
            |o: Option<&Value>| o.and_then(|o| o.get("aggregationRule")).is_some_and(|a| !a.is_null());
        if aggregates(Some(object)) || aggregates(request.old) {
            let (held, _) = self.rbac.rules_for(request.user, "");
            if !rule::missing(&held, &Rule::full_authority()).is_empty() {
                let why = "must have cluster-admin privileges to use an aggregationRule";
                return Err(Status::forbidden(about, request.name, why));
            }
        }
        let wanted: Stored = serde_json::from_value(object.clone()).unwrap_or_default();
        self.check_escalation(about, request, &wanted.rules)
    }

    async fn check_binding(
        &self,
        kind: Kind,
        request: &AdmissionRequest<'_>,
        object: &Value,
    ) -> Result<(), Status> {
        if request.user.in_group(super::policy::MASTERS) {
            return Ok(());
        }
        let role = serde_json::from_value::<Stored>(object.clone()).unwrap_or_default().role_ref;
        let resource = role_resource(&role);
        if self.may(request, "bind", resource, &role.name).await? {
            return Ok(());
        }
        let Some(rules) = self.rbac.role(&role, request.namespace) else {
            return Err(Status::not_found(GroupName { group: GROUP, name: resource }, &role.name));
        };
        self.check_escalation(GroupName { group: GROUP, name: kind.resource() }, request, &rules)
    }

    /// 403 unless the caller holds all of the rules in the scope in which they would be granted.
    fn check_escalation(
        &self,
        about: GroupName<'_>,
        request: &AdmissionRequest<'_>,
        wanted: &[Rule],
    ) -> Result<(), Status> {
        let (held, broken) = self.rbac.rules_for(request.user, request.namespace);
        let missing = rule::missing(&held, wanted);
        if missing.is_empty() {
            return Ok(());
        }
        Err(Status::forbidden(about, request.name, &escalation_text(request.user, &missing, &broken)))
    }
}

impl Admission for RbacAdmission {
    fn name(&self) -> &str {
        "RBAC"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation != Operation::Delete
            && subresource.is_empty()
            && resource.def.group == GROUP
            && Kind::from_resource(&resource.def.plural).is_some()
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let (Some(kind), Some(object)) = (Kind::from_resource(&request.resource.def.plural), object)
            else {
                return Ok(());
            };
            let binding = matches!(kind, Kind::RoleBinding | Kind::ClusterRoleBinding);
            if let Some(error) = scope_error(kind, object) {
                return Err(Status::invalid(request.resource.group_kind(), request.name, &[error]));
            }
            if request.old.is_some_and(|old| only_gc_fields_differ(old, object)) {
                return Ok(());
            }
            if binding {
                self.check_binding(kind, request, object).await
            } else {
                self.check_role(kind, request, object).await
            }
        })
    }
}

/// Upstream's text, with each missing rule on its own line.
fn escalation_text(user: &UserInfo, missing: &[Rule], broken: &[String]) -> String {
    let lines: BTreeSet<String> = rule::compacted(missing).iter().map(Rule::compact_string).collect();
    let lines: Vec<String> = lines.into_iter().collect();
    let mut text = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        rule::quoted(&user.groups),
        lines.join("\n")
    );
    if !broken.is_empty() {
        text.push_str(&format!("; resolution errors: [{}]", broken.join(", ")));
    }
    text
}

fn role_resource(role: &RoleRef) -> &'static str {
    if role.kind == "Role" { Kind::Role.resource() } else { Kind::ClusterRole.resource() }
}

/// A ClusterRoleBinding cannot refer to a Role. (The kind itself validates the rest.)
fn scope_error(kind: Kind, object: &Value) -> Option<FieldError> {
    let named = &object["roleRef"]["kind"];
    (kind == Kind::ClusterRoleBinding && named != "ClusterRole")
        .then(|| FieldError::not_supported("roleRef.kind", named, &["ClusterRole"]))
}

/// Whether an update changes only fields for garbage collection, which needs no permissions of the role's rules.
fn only_gc_fields_differ(old: &Value, new: &Value) -> bool {
    let strip = |o: &Value| {
        let mut o = o.clone();
        if let Some(meta) = o.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                meta.remove(field);
            }
        }
        o
    };
    let gc = |o: &Value| json!([o["metadata"]["ownerReferences"], o["metadata"]["finalizers"]]);
    gc(old) != gc(new) && strip(old) == strip(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_role_binding_must_refer_to_a_cluster_role() {
        let binding = json!({"roleRef": {"kind": "Role", "name": "r"}});
        assert!(scope_error(Kind::ClusterRoleBinding, &binding).is_some());
        assert!(scope_error(Kind::RoleBinding, &binding).is_none());
    }

    #[test]
    fn only_updates_of_gc_fields_are_exempt() {
        let old = json!({"metadata": {"name": "r", "finalizers": ["x"]}, "rules": []});
        let mut new = old.clone();
        assert!(!only_gc_fields_differ(&old, &new));
        new["metadata"]["finalizers"] = json!([]);
        assert!(only_gc_fields_differ(&old, &new));
        new["metadata"]["labels"] = json!({"a": "b"});
        assert!(!only_gc_fields_differ(&old, &new));
    }

    #[test]
    fn the_error_lists_missing_permissions() {
        let user =
            UserInfo { name: "bob".into(), groups: vec!["a".into(), "b".into()], ..UserInfo::default() };
        let missing =
            [Rule::resources(&["get"], &[""], &["pods"]), Rule::resources(&["delete"], &[""], &["pods"])];
        assert_eq!(
            escalation_text(&user, &missing, &[]),
            "user \"bob\" (groups=[\"a\" \"b\"]) is attempting to grant RBAC permissions not currently held:\n\
             {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\" \"get\"]}"
        );
    }
}
