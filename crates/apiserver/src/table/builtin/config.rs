//! Secrets, ConfigMaps, ServiceAccounts, events and the API's own configuration.

use jiff::Timestamp;
use serde_json::Value;

use super::{BuiltIn, age, at, condition, count, define, list, name_age, number, text};
use crate::object::ObjectExt;
use crate::table::age::since;

pub(super) fn printers() -> Vec<BuiltIn> {
    const ADMISSION: &str = "admissionregistration.k8s.io";
    let event = "Last Seen,Type,Reason,Object,Subobject*,Source*,Message,First Seen*,Count:integer*,Name*";
    vec![
        define("", "Secret", "Name,Type,Data:integer,Age", |o, now| {
            vec![o.name().into(), o.top_str("type").into(), count(o, "data").into(), age(o, now)]
        }),
        define("", "ConfigMap", "Name,Data:integer,Age", |o, now| {
            vec![o.name().into(), (count(o, "data") + count(o, "binaryData")).into(), age(o, now)]
        }),
        define("", "ServiceAccount", "Name,Age", name_age),
        define("", "Event", event, event_cells),
        define("events.k8s.io", "Event", event, event_cells),
        define(ADMISSION, "MutatingWebhookConfiguration", "Name,Webhooks:integer,Age", webhooks),
        define(ADMISSION, "ValidatingWebhookConfiguration", "Name,Webhooks:integer,Age", webhooks),
        define(ADMISSION, "ValidatingAdmissionPolicy", "Name,Validations:integer,ParamKind,Age", |o, now| {
            let param = match at(o, &["spec", "paramKind"]) {
                Some(p) => format!("{}/{}", p.api_version(), p.kind()),
                None => "<unset>".to_owned(),
            };
            let validations = list(o, &["spec", "validations"]).len();
            vec![o.name().into(), validations.into(), param.into(), age(o, now)]
        }),
        define(ADMISSION, "ValidatingAdmissionPolicyBinding", "Name,PolicyName,ParamRef,Age", |o, now| {
            let param = match at(o, &["spec", "paramRef"]) {
                Some(p) if p.top_str("namespace").is_empty() => p.top_str("name").to_owned(),
                Some(p) => format!("{}/{}", p.top_str("namespace"), p.top_str("name")),
                None => "<unset>".to_owned(),
            };
            vec![o.name().into(), text(o, &["spec", "policyName"]).into(), param.into(), age(o, now)]
        }),
        define("apiregistration.k8s.io", "APIService", "Name,Service,Available,Age", api_service),
        define(
            "certificates.k8s.io",
            "CertificateSigningRequest",
            "Name,Age,SignerName,Requestor,RequestedDuration,Condition",
            certificate_request,
        ),
    ]
}

fn webhooks(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![object.name().into(), list(object, &["webhooks"]).len().into(), age(object, now)]
}

fn api_service(object: &Value, now: Timestamp) -> Vec<Value> {
    let service = match at(object, &["spec", "service"]).filter(|s| !s.is_null()) {
        Some(s) => format!("{}/{}", s.top_str("namespace"), s.top_str("name")),
        None => "Local".to_owned(),
    };
    let available = match condition(object, "Available") {
        Some(c) if c.top_str("status") == "True" => "True".to_owned(),
        Some(c) => format!("{} ({})", c.top_str("status"), c.top_str("reason")),
        None => "Unknown".to_owned(),
    };
    vec![object.name().into(), service.into(), available.into(), age(object, now)]
}

/// Events of both groups; the newer one has other field names and keeps the old ones as `deprecated…`.
fn event_cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let field = |names: &[&[&str]]| names.iter().find_map(|path| at(event, path)).filter(|v| !v.is_null());
    let first =
        field(&[&["firstTimestamp"], &["deprecatedFirstTimestamp"]]).or_else(|| field(&[&["eventTime"]]));
    let last = field(&[&["series", "lastObservedTime"]])
        .or_else(|| field(&[&["lastTimestamp"], &["deprecatedLastTimestamp"]]))
        .or(first);
    let total =
        field(&[&["series", "count"], &["count"], &["deprecatedCount"]]).and_then(Value::as_i64).unwrap_or(1);
    let object = field(&[&["involvedObject"], &["regarding"]]).unwrap_or(&Value::Null);
    let target = match (object.kind(), object.top_str("name")) {
        ("", name) => name.to_owned(),
        (kind, "") => kind.to_lowercase(),
        (kind, name) => format!("{}/{name}", kind.to_lowercase()),
    };
    let source = field(&[&["source"], &["deprecatedSource"]]).unwrap_or(&Value::Null);
    let component = match source.top_str("component") {
        "" => match event.top_str("reportingComponent") {
            "" => event.top_str("reportingController"),
            component => component,
        },
        component => component,
    };
    let host = match source.top_str("host") {
        "" => event.top_str("reportingInstance"),
        host => host,
    };
    let source = if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") };
    let message = field(&[&["message"], &["note"]]).and_then(Value::as_str).unwrap_or_default();
    vec![
        since(last, now).into(),
        event.top_str("type").into(),
        event.top_str("reason").into(),
        target.into(),
        object.top_str("fieldPath").into(),
        source.into(),
        message.trim().into(),
        since(first, now).into(),
        total.into(),
        event.name().into(),
    ]
}

fn certificate_request(object: &Value, now: Timestamp) -> Vec<Value> {
    let duration = match at(object, &["spec", "expirationSeconds"]) {
        Some(_) => super::super::human_duration(jiff::SignedDuration::from_secs(number(
            object,
            &["spec", "expirationSeconds"],
        ))),
        None => "<none>".to_owned(),
    };
    let mut state: Vec<&str> =
        list(object, &["status", "conditions"]).iter().map(|c| c.top_str("type")).collect();
    if state.is_empty() {
        state.push("Pending");
    }
    if !text(object, &["status", "certificate"]).is_empty() {
        state.push("Issued");
    }
    vec![
        object.name().into(),
        age(object, now),
        super::or_none(text(object, &["spec", "signerName"])),
        text(object, &["spec", "username"]).into(),
        duration.into(),
        state.join(",").into(),
    ]
}
