//! Jobs and CronJobs.

use jiff::Timestamp;
use serde_json::Value;

use super::{BuiltIn, age, at, condition_is, containers, define, list, number, selector, text};
use crate::object::ObjectExt;
use crate::table::age::{human_duration, since};

pub(super) fn printers() -> Vec<BuiltIn> {
    vec![
        define("batch", "Job", "Name,Status,Completions,Duration,Age,Containers*,Images*,Selector*", job),
        define(
            "batch",
            "CronJob",
            "Name,Schedule,Timezone,Suspend:boolean,Active:integer,Last Schedule,Age,Containers*,Images*,Selector*",
            cron_job,
        ),
    ]
}

fn job(job: &Value, now: Timestamp) -> Vec<Value> {
    let succeeded = number(job, &["status", "succeeded"]);
    let completions = match at(job, &["spec", "completions"]).and_then(Value::as_i64) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None => match number(job, &["spec", "parallelism"]) {
            parallelism if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
            _ => format!("{succeeded}/1"),
        },
    };
    let time = |field: &str| text(job, &["status", field]).parse::<Timestamp>().ok();
    let duration = match (time("startTime"), time("completionTime")) {
        (None, _) => String::new(),
        (Some(start), end) => human_duration(end.unwrap_or(now).duration_since(start)),
    };
    let [names, images] = containers(at(job, &["spec", "template"]));
    vec![
        job.name().into(),
        job_status(job).into(),
        completions.into(),
        duration.into(),
        age(job, now),
        names,
        images,
        selector(at(job, &["spec", "selector"])),
    ]
}

fn job_status(job: &Value) -> &'static str {
    let is = |kind| condition_is(job, kind, "True");
    match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if job.is_deleting() => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn cron_job(object: &Value, now: Timestamp) -> Vec<Value> {
    let zone = text(object, &["spec", "timeZone"]);
    let last = match at(object, &["status", "lastScheduleTime"]) {
        None => "<none>".to_owned(),
        time => since(time, now),
    };
    let [names, images] = containers(at(object, &["spec", "jobTemplate", "spec", "template"]));
    let suspend = at(object, &["spec", "suspend"]).and_then(Value::as_bool);
    vec![
        object.name().into(),
        text(object, &["spec", "schedule"]).into(),
        super::or_none(zone),
        suspend.map_or("<unset>", |s| if s { "True" } else { "False" }).into(),
        list(object, &["status", "active"]).len().into(),
        last.into(),
        age(object, now),
        names,
        images,
        selector(at(object, &["spec", "jobTemplate", "spec", "selector"])),
    ]
}
