//! Pods.

use jiff::Timestamp;
use serde_json::Value;

use super::{BuiltIn, age, at, condition_is, define, list, number, or_none, text};
use crate::object::ObjectExt;
use crate::table::age::since;

pub(super) fn printers() -> Vec<BuiltIn> {
    let columns = "Name,Ready,Status,Restarts,Age,IP*,Node*,Nominated Node*,Readiness Gates*";
    vec![
        define("", "Pod", columns, cells),
        define("", "PodTemplate", "Name,Containers,Images,Pod Labels", template),
    ]
}

fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let restarts = match (summary.restarts, &summary.last_restart) {
        (0, _) | (_, None) => summary.restarts.to_string(),
        (n, Some(at)) => format!("{n} ({} ago)", since(Some(&Value::from(at.as_str())), now)),
    };
    let ip = match list(pod, &["status", "podIPs"]).first() {
        Some(first) => first.top_str("ip"),
        None => text(pod, &["status", "podIP"]),
    };
    vec![
        pod.name().into(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        age(pod, now),
        or_none(ip),
        or_none(text(pod, &["spec", "nodeName"])),
        or_none(text(pod, &["status", "nominatedNodeName"])),
        readiness_gates(pod),
    ]
}

fn readiness_gates(pod: &Value) -> Value {
    let gates = list(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".into();
    }
    let passed = gates.iter().filter(|g| condition_is(pod, g.top_str("conditionType"), "True")).count();
    format!("{passed}/{}", gates.len()).into()
}

fn template(object: &Value, _: Timestamp) -> Vec<Value> {
    let [names, images] = super::containers(object.get("template"));
    vec![object.name().into(), names, images, super::labels(at(object, &["template", "metadata", "labels"]))]
}

/// The status of a pod in `kubectl get pods`, and its counts.
struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<String>,
}

impl Summary {
    fn of(pod: &Value) -> Summary {
        let status = pod.get("status").unwrap_or(&Value::Null);
        let init_specs = list(pod, &["spec", "initContainers"]);
        let is_sidecar = |name: &str| {
            init_specs.iter().any(|c| c.top_str("name") == name && c.top_str("restartPolicy") == "Always")
        };
        let sidecars = init_specs.iter().filter(|c| c.top_str("restartPolicy") == "Always").count();
        let phase = status.top_str("phase");
        let mut summary = Summary {
            reason: match status.top_str("reason") {
                "" => phase.to_owned(),
                reason => reason.to_owned(),
            },
            ready: 0,
            total: list(pod, &["spec", "containers"]).len() + sidecars,
            restarts: 0,
            last_restart: None,
        };
        let gated = list(status, &["conditions"])
            .iter()
            .any(|c| c.top_str("type") == "PodScheduled" && c.top_str("reason") == "SchedulingGated");
        if gated {
            summary.reason = "SchedulingGated".to_owned();
        }
        let initializing = summary.init_containers(status, init_specs.len(), is_sidecar);
        if !initializing || condition_is(pod, "Initialized", "True") {
            summary.containers(pod, status, is_sidecar);
        }
        if pod.is_deleting() {
            if status.top_str("reason") == "NodeLost" {
                summary.reason = "Unknown".to_owned();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                summary.reason = "Terminating".to_owned();
            }
        }
        summary
    }

    /// Returns whether an init container is running or waiting.
    fn init_containers(&mut self, status: &Value, total: usize, is_sidecar: impl Fn(&str) -> bool) -> bool {
        for (i, container) in list(status, &["initContainerStatuses"]).iter().enumerate() {
            self.count_restarts(container);
            let terminated = at(container, &["state", "terminated"]);
            let waiting = text(container, &["state", "waiting", "reason"]);
            let sidecar = is_sidecar(container.top_str("name"));
            match terminated {
                Some(t) if number(t, &["exitCode"]) == 0 => continue,
                _ if sidecar && container.get("started").and_then(Value::as_bool) == Some(true) => {
                    if container.get("ready").and_then(Value::as_bool) == Some(true) {
                        self.ready += 1;
                    }
                    continue;
                }
                Some(t) => self.reason = format!("Init:{}", termination(t)),
                None if !waiting.is_empty() && waiting != "PodInitializing" => {
                    self.reason = format!("Init:{waiting}");
                }
                None => self.reason = format!("Init:{i}/{total}"),
            }
            return true;
        }
        false
    }

    fn containers(&mut self, pod: &Value, status: &Value, is_sidecar: impl Fn(&str) -> bool) {
        // Restarts of ordinary init containers are no longer counted; those of sidecars are.
        (self.restarts, self.last_restart) = (0, None);
        for container in list(status, &["initContainerStatuses"]) {
            if is_sidecar(container.top_str("name")) {
                self.count_restarts(container);
            }
        }
        let mut running = false;
        for container in list(status, &["containerStatuses"]).iter().rev() {
            self.count_restarts(container);
            let waiting = text(container, &["state", "waiting", "reason"]);
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if let Some(terminated) = at(container, &["state", "terminated"]) {
                self.reason = termination(terminated);
            } else if container.get("ready").and_then(Value::as_bool) == Some(true)
                && at(container, &["state", "running"]).is_some()
            {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" && running {
            let ready = condition_is(pod, "Ready", "True");
            self.reason = if ready { "Running" } else { "NotReady" }.to_owned();
        }
    }

    fn count_restarts(&mut self, container: &Value) {
        self.restarts += number(container, &["restartCount"]);
        let finished = text(container, &["lastState", "terminated", "finishedAt"]);
        if !finished.is_empty() && self.last_restart.as_deref().is_none_or(|last| last < finished) {
            self.last_restart = Some(finished.to_owned());
        }
    }
}

fn termination(terminated: &Value) -> String {
    match (terminated.top_str("reason"), number(terminated, &["signal"])) {
        ("", 0) => format!("ExitCode:{}", number(terminated, &["exitCode"])),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}
