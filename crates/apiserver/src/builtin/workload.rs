//! Pods and kinds with pod templates: defaults, selectors, immutable fields.

use serde_json::{Value, json};

use super::{child, immutable, items, items_mut, set_default};
use crate::object::{ObjectExt, object_mut};
use crate::status::FieldError;

/// Defaults of a `PodSpec`.
pub(super) fn default_pod_spec(spec: &mut Value) {
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "securityContext", json!({}));
    set_default(spec, "schedulerName", "default-scheduler");
    // The deprecated field has the value of the new one.
    let account = spec.top_str("serviceAccountName").to_owned();
    if !account.is_empty() {
        set_default(spec, "serviceAccount", account);
    }
    for field in ["containers", "initContainers", "ephemeralContainers"] {
        items_mut(spec, field).for_each(default_container);
    }
    for volume in items_mut(spec, "volumes") {
        for source in ["secret", "configMap", "downwardAPI", "projected"] {
            if let Some(source) = volume.get_mut(source).filter(|source| source.is_object()) {
                set_default(source, "defaultMode", 420);
            }
        }
        if let Some(path) = volume.get_mut("hostPath").filter(|path| path.is_object()) {
            set_default(path, "type", "");
        }
    }
}

fn default_container(container: &mut Value) {
    let image = container.top_str("image");
    let tag = image.rsplit('/').next().unwrap_or_default();
    let latest = !tag.contains('@') && tag.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    set_default(container, "imagePullPolicy", if latest { "Always" } else { "IfNotPresent" });
    set_default(container, "resources", json!({}));
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    items_mut(container, "ports").for_each(|port| set_default(port, "protocol", "TCP"));
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).filter(|probe| probe.is_object()) {
            set_default(probe, "timeoutSeconds", 1);
            set_default(probe, "periodSeconds", 10);
            set_default(probe, "successThreshold", 1);
            set_default(probe, "failureThreshold", 3);
            if let Some(get) = probe.get_mut("httpGet").filter(|get| get.is_object()) {
                set_default(get, "scheme", "HTTP");
            }
        }
    }
    for env in items_mut(container, "env") {
        let field = env.get_mut("valueFrom").and_then(|from| from.get_mut("fieldRef"));
        if let Some(field) = field.filter(|field| field.is_object()) {
            set_default(field, "apiVersion", "v1");
        }
    }
}

fn default_template(spec: &mut Value) {
    let template = child(spec, "template");
    if template.get("metadata").is_none_or(Value::is_null) {
        object_mut(template).insert("metadata".into(), json!({}));
    }
    default_pod_spec(child(template, "spec"));
}

pub(super) fn default_pod(pod: &mut Value) {
    let spec = child(pod, "spec");
    default_pod_spec(spec);
    set_default(spec, "enableServiceLinks", true);
}

pub(super) fn create_pod(pod: &mut Value) {
    let status = child(pod, "status");
    status["phase"] = "Pending".into();
    status["qosClass"] = "BestEffort".into();
}

pub(super) fn validate_pod(pod: &Value, _old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_pod_spec(&pod["spec"], "spec", &mut errors);
    errors
}

fn validate_pod_spec(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if items(spec, "containers").next().is_none() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let mut names = std::collections::HashSet::new();
    for field in ["initContainers", "containers"] {
        for (at, container) in items(spec, field).enumerate() {
            let path = format!("{path}.{field}[{at}]");
            let name = container.top_str("name");
            if name.is_empty() {
                errors.push(FieldError::required(format!("{path}.name"), ""));
            } else if let Err(why) = crate::validation::dns1123_label(name) {
                errors.push(FieldError::invalid(format!("{path}.name"), &name.into(), why));
            } else if !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), &name.into()));
            }
            if container.top_str("image").is_empty() {
                errors.push(FieldError::required(format!("{path}.image"), ""));
            }
        }
    }
    let policy = spec.top_str("restartPolicy");
    if !matches!(policy, "Always" | "OnFailure" | "Never") {
        let supported = ["Always", "OnFailure", "Never"];
        errors.push(FieldError::not_supported(format!("{path}.restartPolicy"), &policy.into(), &supported));
    }
}

pub(super) fn default_pod_template(object: &mut Value) {
    default_template(object);
}

pub(super) fn default_deployment(deployment: &mut Value) {
    let spec = child(deployment, "spec");
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "progressDeadlineSeconds", 600);
    let strategy = child(spec, "strategy");
    set_default(strategy, "type", "RollingUpdate");
    if strategy.top_str("type") == "RollingUpdate" {
        let rolling = child(strategy, "rollingUpdate");
        set_default(rolling, "maxUnavailable", "25%");
        set_default(rolling, "maxSurge", "25%");
    }
    default_template(spec);
}

pub(super) fn default_replica_set(set: &mut Value) {
    let labels = set["spec"]["template"]["metadata"]["labels"].clone();
    let spec = child(set, "spec");
    set_default(spec, "replicas", 1);
    default_template(spec);
    if labels.is_object() && set["metadata"].get("labels").is_none() {
        set.metadata_mut().insert("labels".into(), labels);
    }
}

/// Like a ReplicaSet, but its selector is a plain map that defaults to the template's labels.
pub(super) fn default_replication_controller(controller: &mut Value) {
    default_replica_set(controller);
    let labels = controller["spec"]["template"]["metadata"]["labels"].clone();
    if labels.is_object() {
        set_default(child(controller, "spec"), "selector", labels);
    }
}

pub(super) fn default_stateful_set(set: &mut Value) {
    let spec = child(set, "spec");
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "podManagementPolicy", "OrderedReady");
    let retention = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
    set_default(spec, "persistentVolumeClaimRetentionPolicy", retention);
    let strategy = child(spec, "updateStrategy");
    set_default(strategy, "type", "RollingUpdate");
    if strategy.top_str("type") == "RollingUpdate" {
        set_default(child(strategy, "rollingUpdate"), "partition", 0);
    }
    default_template(spec);
}

pub(super) fn default_daemon_set(set: &mut Value) {
    let spec = child(set, "spec");
    set_default(spec, "revisionHistoryLimit", 10);
    let strategy = child(spec, "updateStrategy");
    set_default(strategy, "type", "RollingUpdate");
    if strategy.top_str("type") == "RollingUpdate" {
        let rolling = child(strategy, "rollingUpdate");
        set_default(rolling, "maxUnavailable", 1);
        set_default(rolling, "maxSurge", 0);
    }
    default_template(spec);
}

/// Checks that the selector matches the template, and that both are immutable.
pub(super) fn validate_workload(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    let replicas = spec.get("replicas").filter(|replicas| !replicas.is_null());
    if let Some(replicas) = replicas.filter(|replicas| replicas.as_i64().is_none_or(|n| n < 0)) {
        errors.push(FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0"));
    }
    let selector = spec.get("selector");
    let labels = &spec["template"]["metadata"]["labels"];
    match selector.and_then(|selector| selector.get("matchLabels")).and_then(Value::as_object) {
        _ if selector.is_none_or(Value::is_null) => errors.push(FieldError::required("spec.selector", "")),
        Some(wanted) if wanted.iter().any(|(key, value)| labels.get(key) != Some(value)) => {
            let why = "`selector` does not match template `labels`";
            errors.push(FieldError::invalid("spec.template.metadata.labels", labels, why));
        }
        _ => {}
    }
    immutable(object, old, &["spec", "selector"], &mut errors);
    validate_pod_spec(&spec["template"]["spec"], "spec.template.spec", &mut errors);
    errors
}

pub(super) fn default_job(job: &mut Value) {
    let spec = child(job, "spec");
    default_job_spec(spec);
    let labels = spec["template"]["metadata"]["labels"].clone();
    if labels.is_object() && job["metadata"].get("labels").is_none() {
        job.metadata_mut().insert("labels".into(), labels);
    }
}

fn default_job_spec(spec: &mut Value) {
    let unset = |spec: &Value, field: &str| spec.get(field).is_none_or(Value::is_null);
    if unset(spec, "completions") && unset(spec, "parallelism") {
        set_default(spec, "completions", 1);
    }
    set_default(spec, "parallelism", 1);
    set_default(spec, "backoffLimit", 6);
    set_default(spec, "completionMode", "NonIndexed");
    set_default(spec, "suspend", false);
    set_default(spec, "manualSelector", false);
    set_default(spec, "podReplacementPolicy", "TerminatingOrFailed");
    default_template(spec);
}

/// Sets labels and a selector with the Job's own uid, so that its pods cannot be confused with those of others.
pub(super) fn create_job(job: &mut Value) {
    let (name, uid) = (job.name().to_owned(), job.uid().to_owned());
    let spec = child(job, "spec");
    if spec.get("manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let labels = [
        ("controller-uid", &uid),
        ("batch.kubernetes.io/controller-uid", &uid),
        ("job-name", &name),
        ("batch.kubernetes.io/job-name", &name),
    ];
    let template = child(child(child(spec, "template"), "metadata"), "labels");
    for (key, value) in labels {
        template[key] = value.as_str().into();
    }
    let selector = child(child(spec, "selector"), "matchLabels");
    selector["batch.kubernetes.io/controller-uid"] = uid.as_str().into();
}

pub(super) fn validate_job(job: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_job_template(&job["spec"]["template"]["spec"], "spec.template.spec", &mut errors);
    immutable(job, old, &["spec", "selector"], &mut errors);
    immutable(job, old, &["spec", "completionMode"], &mut errors);
    // The template of a suspended Job that has not started can still be changed.
    let started = old.is_some_and(|old| {
        old["spec"]["suspend"] != true || old["status"].get("startTime").is_some_and(|time| !time.is_null())
    });
    if started {
        immutable(job, old, &["spec", "template"], &mut errors);
    }
    errors
}

fn validate_job_template(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    validate_pod_spec(spec, path, errors);
    if spec.top_str("restartPolicy") == "Always" {
        let supported = ["OnFailure", "Never"];
        errors.push(FieldError::not_supported(format!("{path}.restartPolicy"), &"Always".into(), &supported));
    }
}

pub(super) fn default_cron_job(job: &mut Value) {
    let spec = child(job, "spec");
    set_default(spec, "concurrencyPolicy", "Allow");
    set_default(spec, "suspend", false);
    set_default(spec, "successfulJobsHistoryLimit", 3);
    set_default(spec, "failedJobsHistoryLimit", 1);
    // Completions and selectors belong to each Job, so the template gets only the pod's defaults.
    default_template(child(child(spec, "jobTemplate"), "spec"));
}

pub(super) fn validate_cron_job(job: &Value, _old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if job["spec"].top_str("schedule").is_empty() {
        errors.push(FieldError::required("spec.schedule", ""));
    }
    let template = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    validate_job_template(template, "spec.jobTemplate.spec.template.spec", &mut errors);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_idempotent() {
        let container = json!({"name": "a", "image": "b:1"});
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}});
        let object = json!({"metadata": {"name": "x", "uid": "u"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
        for default in
            [default_deployment, default_stateful_set, default_daemon_set, default_replica_set, default_job]
        {
            let mut once = object.clone();
            default(&mut once);
            let mut twice = once.clone();
            default(&mut twice);
            assert_eq!(once, twice);
            assert_eq!(once["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
        }
    }

    #[test]
    fn selectors_must_match_and_are_immutable() {
        let mut good = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}}}});
        default_deployment(&mut good);
        assert!(validate_workload(&good, None).is_empty());
        let mut bad = good.clone();
        bad["spec"]["selector"]["matchLabels"]["a"] = "c".into();
        assert_eq!(validate_workload(&bad, None).len(), 1);
        assert_eq!(validate_workload(&bad, Some(&good)).len(), 2);
    }
}
