//! `POST pods/{name}/eviction`: a delete that respects the pod's disruption budget.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::object::ObjectExt;
use crate::objects::{DeleteOptions, ListOptions, UpdateOptions};
use crate::resources::{Connect, ConnectRequest, Resource, Serve, SubresourceDef};
use crate::selector::LabelSelector;
use crate::status::Status;

/// How long a client should wait before it retries.
const RETRY_SECONDS: u32 = 10;

pub(super) fn eviction() -> SubresourceDef {
    SubresourceDef {
        name: "eviction".into(),
        group: "policy".into(),
        version: "v1".into(),
        kind: "Eviction".into(),
        verbs: vec!["create"],
        serve: Serve::Connect(Arc::new(Eviction)),
    }
}

struct Eviction;

impl Connect for Eviction {
    fn connect<'a>(&'a self, request: ConnectRequest<'a>) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move {
            if request.verb != "create" {
                return Err(Status::method_not_allowed());
            }
            let body = request.body.as_ref().ok_or_else(|| Status::bad_request("an Eviction is required"))?;
            if body["metadata"]["name"].as_str().is_some_and(|name| !name.is_empty() && name != request.name)
            {
                return Err(Status::bad_request("name in URL does not match name in Eviction object"));
            }
            let pod = request.objects.get_value(request.resource, request.namespace, request.name).await?;
            if !is_not_serving(&pod) {
                check_budget(&request, &pod).await?;
            }
            let options = delete_options(&body["deleteOptions"]);
            let (context, name) = (request.context, request.name);
            request.objects.delete(context, request.resource, request.namespace, name, &options).await?;
            Ok((
                201,
                json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success", "code": 201}),
            ))
        })
    }
}

/// A pod that does not serve requests does not count as a disruption.
fn is_not_serving(pod: &Value) -> bool {
    pod.is_deleting() || matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
}

fn delete_options(body: &Value) -> DeleteOptions {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    DeleteOptions {
        uid: text(&body["preconditions"]["uid"]),
        resource_version: text(&body["preconditions"]["resourceVersion"]),
        grace_period_seconds: body["gracePeriodSeconds"].as_i64(),
        ..DeleteOptions::default()
    }
}

/// Takes one disruption from the budget of the pod, if it has one.
async fn check_budget(request: &ConnectRequest<'_>, pod: &Value) -> Result<(), Status> {
    let Some(budgets) = request.objects.resources().resource("policy", "v1", "poddisruptionbudgets") else {
        return Ok(());
    };
    let page = request.objects.list(&budgets, Some(request.namespace), &ListOptions::default()).await?;
    let covering: Vec<String> = page
        .items
        .iter()
        .map(|item| item.decode())
        .filter(|b| covers(b, pod))
        .map(|b| b.name().to_owned())
        .collect();
    match covering.as_slice() {
        [] => Ok(()),
        [budget] => take_disruption(request, &budgets, budget, pod).await,
        _ => Err(Status::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )),
    }
}

async fn take_disruption(
    request: &ConnectRequest<'_>,
    budgets: &Arc<Resource>,
    name: &str,
    pod: &Value,
) -> Result<(), Status> {
    let budget = request.objects.get_value(budgets, request.namespace, name).await?;
    if needs_no_disruption(&budget, pod) {
        return Ok(());
    }
    let now = crate::clock::rfc3339_seconds(request.objects.clock().now());
    let change = |old: Option<&Value>| {
        let mut budget = old.cloned().unwrap_or_default();
        let left = disruptions_left(&budget)?;
        budget["status"]["disruptionsAllowed"] = (left - 1).into();
        budget["status"]["disruptedPods"][request.name] = now.clone().into();
        Ok(budget)
    };
    let options = UpdateOptions { subresource: "status", ..UpdateOptions::default() };
    request.objects.update(request.context, budgets, request.namespace, name, options, change).await.map(drop)
}

/// An unready pod may be evicted without a disruption, if the budget says so or enough others are healthy.
fn needs_no_disruption(budget: &Value, pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let ready =
        conditions.is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
    if ready {
        return false;
    }
    let status = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || (status("desiredHealthy") > 0 && status("currentHealthy") >= status("desiredHealthy"))
}

fn disruptions_left(budget: &Value) -> Result<i64, Status> {
    let status = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let refused = |why: String| {
        Err(Status::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.")
            .with_retry_after(RETRY_SECONDS)
            .with_cause("DisruptionBudget", "", why))
    };
    let name = budget.name();
    if status("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return refused(format!("The disruption budget {name} is still being processed by the server."));
    }
    match status("disruptionsAllowed") {
        ..=0 => refused(format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            status("desiredHealthy"),
            status("currentHealthy")
        )),
        left => Ok(left),
    }
}

/// A budget without selector matches no pods, one with an empty selector matches all.
fn covers(budget: &Value, pod: &Value) -> bool {
    let Some(selector) = budget["spec"]["selector"].as_object() else { return false };
    let labels = &pod["metadata"]["labels"];
    LabelSelector::from_object(selector)
        .is_ok_and(|selector| selector.matches_with(|key| labels.get(key).and_then(Value::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(selector: Value, status: Value) -> Value {
        json!({"metadata": {"name": "b", "generation": 1}, "spec": {"selector": selector}, "status": status})
    }

    #[test]
    fn a_budget_covers_the_pods_of_its_selector() {
        let pod = json!({"metadata": {"labels": {"app": "web"}}});
        let selects = |selector: Value| covers(&budget(selector, json!({})), &pod);
        assert!(selects(json!({"matchLabels": {"app": "web"}})) && selects(json!({})));
        assert!(selects(
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]})
        ));
        assert!(!selects(json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})));
        assert!(!selects(json!({"matchLabels": {"app": "db"}})) && !selects(Value::Null));
    }

    #[test]
    fn a_spent_or_unobserved_budget_rejects_temporarily() {
        let fresh = disruptions_left(&budget(json!({}), json!({}))).unwrap_err();
        assert_eq!(fresh.code, 429);
        let spent = json!({"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 2, "currentHealthy": 2});
        let spent = disruptions_left(&budget(json!({}), spent)).unwrap_err().to_value();
        assert_eq!(spent["details"]["retryAfterSeconds"], 10);
        let cause = spent["details"]["causes"][0]["message"].as_str().unwrap();
        assert!(cause.contains("needs 2 healthy pods and has 2"), "{cause}");
        let open = json!({"observedGeneration": 1, "disruptionsAllowed": 3});
        assert_eq!(disruptions_left(&budget(json!({}), open)).unwrap(), 3);
    }

    #[test]
    fn pods_that_do_not_serve_need_no_disruption() {
        let healthy = budget(json!({}), json!({"desiredHealthy": 2, "currentHealthy": 2}));
        assert!(needs_no_disruption(&healthy, &json!({})));
        assert!(!needs_no_disruption(
            &healthy,
            &json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        ));
        assert!(!needs_no_disruption(&budget(json!({}), json!({})), &json!({})));
        assert!(is_not_serving(&json!({"status": {"phase": "Pending"}})));
        assert!(!is_not_serving(&json!({"status": {"phase": "Running"}})));
    }
}
