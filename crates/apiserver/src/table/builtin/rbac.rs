//! Role bindings.

use jiff::Timestamp;
use serde_json::Value;

use super::{BuiltIn, age, define, list, text};
use crate::object::ObjectExt;

pub(super) fn printers() -> Vec<BuiltIn> {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let columns = "Name,Role,Age,Users*,Groups*,ServiceAccounts*";
    vec![define(RBAC, "RoleBinding", columns, binding), define(RBAC, "ClusterRoleBinding", columns, binding)]
}

fn binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = |kind: &str| {
        let names = list(object, &["subjects"]).iter().filter(|s| s.kind() == kind).map(|s| match kind {
            "ServiceAccount" => format!("{}/{}", s.top_str("namespace"), s.top_str("name")),
            _ => s.top_str("name").to_owned(),
        });
        Value::from(names.collect::<Vec<_>>().join(", "))
    };
    vec![
        object.name().into(),
        format!("{}/{}", text(object, &["roleRef", "kind"]), text(object, &["roleRef", "name"])).into(),
        age(object, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}
