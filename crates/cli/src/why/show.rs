//! A report for people.

use drover_api::capi::v1beta2::Cluster as CapiCluster;
use jiff::Timestamp;
use kube::Resource;

use super::walk::{Report, Step};
use crate::output::age;

/// How many other causes are shown.
const MOST: usize = 10;

/// The chain as a tree, the cause in full, then other causes.
pub(super) fn text(report: &Report, now: Timestamp) -> String {
    let Some(cause) = report.chain.last() else {
        return format!("{} is not waiting for anything.\n", report.object);
    };
    let mut out = String::new();
    for (depth, step) in report.chain.iter().enumerate() {
        let indent = if depth == 0 { String::new() } else { format!("{}└─ ", "   ".repeat(depth - 1)) };
        out.push_str(&format!("{indent}{}\n", line(step, now)));
    }
    out.push('\n');
    out.push_str(&detail(cause, now));
    if !report.also.is_empty() {
        out.push_str("\nAlso waiting:\n");
        for step in report.also.iter().take(MOST) {
            out.push_str(&format!("  {}\n", line(step, now)));
        }
        let more = report.also.len().saturating_sub(MOST);
        if more > 0 {
            out.push_str(&format!("  and {more} more\n"));
        }
    }
    out
}

/// Longer lines of the tree are cut. The cause is shown in full below it.
const WIDEST: usize = 150;

/// One object in one line, with the beginning of its message.
fn line(step: &Step, now: Timestamp) -> String {
    let mut lines = step.wait.message.lines();
    let first = lines.next().unwrap_or(&step.wait.reason);
    let room = WIDEST.saturating_sub(name(step).len());
    let cut = first.char_indices().nth(room).map(|(at, _)| at);
    let rest = if cut.is_some() || lines.next().is_some() { " …" } else { "" };
    let first = cut.map_or(first, |at| &first[..at]);
    let since = step.wait.since.as_ref().map(|since| format!(" ({})", age(since.0, now)));
    format!("{}: {first}{rest}{}", name(step), since.unwrap_or_default())
}

/// The object, with a prefix for Cluster API's Cluster, because Drover has a kind of the same name.
fn name(step: &Step) -> String {
    let is_capi = step.object.kind == "Cluster" && step.api_group == CapiCluster::group(&());
    format!("{}{}", if is_capi { "CAPI " } else { "" }, step.object)
}

fn detail(cause: &Step, now: Timestamp) -> String {
    let wait = &cause.wait;
    let mut rows = vec![("Cause", name(cause))];
    if wait.object != cause.object {
        rows.push(("Waits for", wait.object.to_string()));
    }
    rows.push(("Message", wait.message.clone()));
    rows.push(("Expected", wait.expected.clone()));
    rows.push(("Observed", wait.observed.clone()));
    if let Some(since) = &wait.since {
        rows.push(("Since", format!("{} ({} ago)", since.0, age(since.0, now))));
    }
    rows.push(("What to do", wait.remedy.clone().unwrap_or_default()));
    let mut out = String::new();
    for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        let mut lines = value.lines();
        out.push_str(&format!("{:<12}{}\n", format!("{name}:"), lines.next().unwrap_or_default()));
        for line in lines {
            out.push_str(&format!("{:12}{line}\n", ""));
        }
    }
    out
}
