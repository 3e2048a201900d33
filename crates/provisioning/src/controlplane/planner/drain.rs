//! The planner's side of a drain: ask for it before a disruptive plan, end it after. The other side, which
//! cordons and evicts, is [`crate::controlplane::machinedrain`].

use crate::keys::annotations;
use drover_api::rke::v1::DrainOptions;
use drover_plan::Plan;
use serde_json::json;

use super::entry::Entry;
use super::render::instructions::{DRAIN_HASH, install_env};
use crate::controlplane::waits::Detail;
use crate::plansecret::failure::shorten;

/// Whether a plan may be written now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Go on.
    Proceed,
    /// Not yet; and why, if there is more to say than the state itself.
    Wait(Option<Detail>),
    /// Set this annotation of the plan secret first.
    Annotate(&'static str, String),
}

/// How a kube-apiserver says that it cannot reach a node. The drain goes on by itself when it can, so it is not shown.
const UNREACHABLE: &str = "error trying to reach service";

/// Before a changed plan: is this machine drained, or does it need no drain?
pub fn before_plan(desired: &Plan, entry: &Entry, machines: usize, options: Option<&DrainOptions>) -> Step {
    let options = options.cloned().unwrap_or_default();
    let has_hooks = !options.pre_drain_hooks.is_empty() || !options.post_drain_hooks.is_empty();
    let single = machines <= 1;
    if entry.machine.node_ref.is_none() || !is_disruptive(entry, desired) {
        return Step::Proceed;
    }
    if (!options.enabled || single) && !has_hooks {
        return Step::Proceed;
    }
    let wanted = to_annotation(&DrainOptions { enabled: options.enabled && !single, ..options });
    if entry.annotation(annotations::DRAIN_OPTIONS) != wanted {
        return Step::Annotate(annotations::DRAIN_OPTIONS, wanted);
    }
    let error = entry.annotation(annotations::DRAIN_ERROR);
    if entry.annotation(annotations::DRAIN_DONE) == wanted {
        Step::Proceed
    } else if error.is_empty() || error.contains(UNREACHABLE) {
        Step::Wait(None)
    } else {
        Step::Wait(Some(Detail::Drain { machine: entry.name().to_owned(), error: shorten(error) }))
    }
}

/// After the plan is in place: is this machine back?
pub fn after_plan(entry: &Entry) -> Step {
    let options = entry.annotation(annotations::DRAIN_OPTIONS);
    let uncordon = entry.annotation(annotations::UNCORDON);
    // Marks that cannot be read would keep the machine in its drain for ever.
    let unreadable = serde_json::from_str::<DrainOptions>(options).is_err();
    if unreadable && let Some(key) = MARKS.into_iter().find(|key| !entry.annotation(key).is_empty()) {
        return Step::Annotate(key, String::new());
    }
    if !options.is_empty() && uncordon != options {
        return Step::Annotate(annotations::UNCORDON, options.to_owned());
    }
    if uncordon.is_empty() { Step::Proceed } else { Step::Wait(None) }
}

/// What a drain leaves on a plan secret, if it is cut off.
const MARKS: [&str; 4] =
    [annotations::DRAIN_OPTIONS, annotations::UNCORDON, annotations::PRE_DRAIN, annotations::POST_DRAIN];

fn is_disruptive(entry: &Entry, desired: &Plan) -> bool {
    let applied =
        entry.node.applied_plan.as_ref().and_then(|plan| install_env(plan, DRAIN_HASH)).unwrap_or("");
    !applied.is_empty() && install_env(desired, DRAIN_HASH) != Some(applied)
}

/// JSON with sorted keys, so that the value can be compared as text.
pub fn to_annotation(options: &DrainOptions) -> String {
    String::from_utf8_lossy(&crate::digest::go_json(&json!(options))).into_owned()
}
