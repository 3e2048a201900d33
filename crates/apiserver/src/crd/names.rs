//! Decides which CRD may use which names, and its status. Pure: takes all CRDs and returns all statuses.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::conditions::{self, Condition, is_true};
use crate::object::{ObjectExt, object_mut};

/// Recomputes names and conditions of all CRDs of the server; returns the changed ones.
///
/// A name belongs to the CRD that already has it (`status.acceptedNames`), otherwise to the first one. A conflict never
/// removes `Established`. `served` is whether a CRD's resources are in the resource table, which is required for
/// `Established`.
pub(super) fn decide(crds: &[Value], served: impl Fn(&Value) -> bool, now: &str) -> Vec<Value> {
    let mut order: Vec<&Value> = crds.iter().collect();
    let rank = |crd: &Value| (!is_true(crd, "Established"), crd.meta_str("creationTimestamp").to_owned());
    order.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.name().cmp(b.name())));
    let mut used: HashMap<String, UsedNames> = HashMap::new();
    // Accepted names stay accepted, even if another CRD requests them.
    for crd in &order {
        let names = &crd["status"]["acceptedNames"];
        let wanted = &crd["spec"]["names"];
        let keep: Map<String, Value> = FIELDS
            .iter()
            .filter(|field| !names.top_str(field).is_empty() && names.top_str(field) == wanted.top_str(field))
            .map(|field| ((*field).to_owned(), names[*field].clone()))
            .collect();
        used.entry(group(crd).to_owned()).or_default().claim(crd.name(), &Value::Object(keep));
    }
    let mut changed = Vec::new();
    for crd in order {
        let mut next = crd.clone();
        names(&mut next, used.entry(group(crd).to_owned()).or_default(), now);
        approval(&mut next, now);
        if is_true(&next, "NamesAccepted") && !crd.is_deleting() && !is_true(&next, "Established") {
            if served(&next) {
                let condition = Condition {
                    kind: "Established",
                    status: "True",
                    reason: "InitialNamesAccepted",
                    message: "the initial names have been accepted".to_owned(),
                };
                conditions::set(&mut next, condition, now);
            }
        } else if !is_true(&next, "NamesAccepted") && !is_true(&next, "Established") {
            let condition = Condition {
                kind: "Established",
                status: "False",
                reason: "NotAccepted",
                message: "not all names are accepted".to_owned(),
            };
            conditions::set(&mut next, condition, now);
        }
        if next != *crd {
            changed.push(next);
        }
    }
    changed
}

const FIELDS: [&str; 4] = ["plural", "singular", "kind", "listKind"];

fn group(crd: &Value) -> &str {
    crd.get("spec").map(|s| s.top_str("group")).unwrap_or_default()
}

/// The names in use in one group, with their owner. Resources (plural, singular, short) and kinds are separate
/// namespaces.
#[derive(Default)]
struct UsedNames {
    resources: HashMap<String, String>,
    kinds: HashMap<String, String>,
}

impl UsedNames {
    fn claim(&mut self, owner: &str, names: &Value) {
        let short = names.get("shortNames").and_then(Value::as_array);
        let short = short.into_iter().flatten().filter_map(Value::as_str);
        for name in [names.top_str("plural"), names.top_str("singular")].into_iter().chain(short) {
            if !name.is_empty() {
                self.resources.entry(name.to_owned()).or_insert_with(|| owner.to_owned());
            }
        }
        for name in [names.top_str("kind"), names.top_str("listKind")] {
            if !name.is_empty() {
                self.kinds.entry(name.to_owned()).or_insert_with(|| owner.to_owned());
            }
        }
    }

    fn free(map: &HashMap<String, String>, name: &str, owner: &str) -> bool {
        map.get(name).is_none_or(|o| o == owner)
    }
}

fn names(crd: &mut Value, used: &mut UsedNames, now: &str) {
    let owner = crd.name().to_owned();
    let wanted = crd["spec"]["names"].clone();
    let mut accepted = match &crd["status"]["acceptedNames"] {
        Value::Object(map) => map.clone(),
        _ => Map::new(),
    };
    let mut conflict: Option<(&'static str, String)> = None;
    let mut refuse = |reason: &'static str, name: &str| {
        // As upstream, the last of several conflicts is reported.
        conflict = Some((reason, format!("{name:?} is already in use")));
    };
    for (field, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
        let name = wanted.top_str(field);
        if UsedNames::free(&used.resources, name, &owner) {
            accepted.insert(field.to_owned(), name.into());
        } else {
            refuse(reason, name);
        }
    }
    let short: Vec<&str> =
        wanted["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let clashes: Vec<&str> =
        short.iter().copied().filter(|s| !UsedNames::free(&used.resources, s, &owner)).collect();
    match clashes.first() {
        Some(name) => refuse("ShortNamesConflict", name),
        None if short.is_empty() => drop(accepted.remove("shortNames")),
        None => drop(accepted.insert("shortNames".to_owned(), json!(short))),
    }
    for (field, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
        let name = wanted.top_str(field);
        if UsedNames::free(&used.kinds, name, &owner) {
            accepted.insert(field.to_owned(), name.into());
        } else {
            refuse(reason, name);
        }
    }
    match wanted.get("categories") {
        Some(categories) => drop(accepted.insert("categories".to_owned(), categories.clone())),
        None => drop(accepted.remove("categories")),
    }
    let accepted = Value::Object(accepted);
    used.claim(&owner, &accepted);
    object_mut(object_mut(crd).entry("status").or_insert(Value::Null))
        .insert("acceptedNames".to_owned(), accepted);
    let condition = match conflict {
        None => Condition {
            kind: "NamesAccepted",
            status: "True",
            reason: "NoConflicts",
            message: "no conflicts found".to_owned(),
        },
        Some((reason, message)) => Condition { kind: "NamesAccepted", status: "False", reason, message },
    };
    conditions::set(crd, condition, now);
}

/// Groups of the Kubernetes project need an approval, which is only recorded, as upstream does.
fn approval(crd: &mut Value, now: &str) {
    const KIND: &str = "KubernetesAPIApprovalPolicyConformant";
    const ANNOTATION: &str = "api-approved.kubernetes.io";
    let group = group(crd).to_owned();
    let protected =
        ["k8s.io", "kubernetes.io"].iter().any(|d| group == *d || group.ends_with(&format!(".{d}")));
    if !protected || group.ends_with("x-k8s.io") {
        conditions::remove(crd, KIND);
        return;
    }
    let annotation = crd["metadata"]["annotations"].top_str(ANNOTATION).to_owned();
    let (status, reason, message) = if annotation.is_empty() {
        (
            "False",
            "MissingAnnotation",
            format!(
                "protected groups must have approval annotation \"{ANNOTATION}\", see https://github.com/kubernetes/enhancements/pull/1111"
            ),
        )
    } else if annotation.starts_with("unapproved") {
        ("False", "UnapprovedAnnotation", format!("not approved: {annotation:?}"))
    } else if annotation.contains("://") {
        ("True", "ApprovedAnnotation", format!("approved in {annotation}"))
    } else {
        (
            "False",
            "InvalidAnnotation",
            format!(
                "protected groups must have approval annotation \"{ANNOTATION}\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
            ),
        )
    };
    conditions::set(crd, Condition { kind: KIND, status, reason, message }, now);
}

/// Whether the CRD's requested names are accepted, so that it may be served.
pub(super) fn may_serve(crd: &Value, built_in: &HashSet<(String, String)>) -> bool {
    let spec = &crd["spec"];
    let clash =
        built_in.contains(&(spec.top_str("group").to_owned(), spec["names"].top_str("plural").to_owned()));
    !clash && (is_true(crd, "NamesAccepted") || is_true(crd, "Established"))
}
