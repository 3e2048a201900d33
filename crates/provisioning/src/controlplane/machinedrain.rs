//! The other side of a drain: cordon, hooks, evict, and afterwards uncordon. Pure; who evicts is a trait.

use std::collections::BTreeMap;

use drover_api::rke::v1::DrainOptions;
use futures::future::BoxFuture;

use crate::keys::annotations;

/// Evicts the pods of a Node.
pub trait Drainer: Send + Sync + 'static {
    /// Starts or continues a drain; true when nothing is left to evict.
    fn drain<'a>(
        &'a self,
        cluster: &'a str,
        node: &'a str,
        options: &'a DrainOptions,
    ) -> BoxFuture<'a, Result<bool, String>>;
}

/// Evicts nothing: for clusters whose nodes run no pods.
pub struct NoDrain;

impl Drainer for NoDrain {
    fn drain<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a DrainOptions,
    ) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(async { Ok(true) })
    }
}

/// The next step of a machine's drain.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    Cordon,
    /// Set this annotation of the plan secret.
    Annotate(&'static str, String),
    /// Wait until each of these annotations equals the value.
    AwaitHooks(Vec<String>),
    Drain(DrainOptions),
    /// Uncordon, then remove these annotations.
    Uncordon(Vec<String>),
}

/// Decides, from the plan secret's annotations and whether the Node is cordoned.
pub fn decide(notes: &BTreeMap<String, String>, cordoned: bool) -> Step {
    let get = |key: &str| notes.get(key).map(String::as_str).unwrap_or_default();
    let wanted = get(annotations::DRAIN_OPTIONS);
    if wanted.is_empty() {
        return Step::Nothing;
    }
    let Ok(options) = serde_json::from_str::<DrainOptions>(wanted) else { return Step::Nothing };
    let hooks = |list: &[drover_api::rke::v1::DrainHook]| -> Vec<String> {
        list.iter().map(|hook| hook.annotation.clone()).filter(|key| !key.is_empty()).collect()
    };
    let (before, after) = (hooks(&options.pre_drain_hooks), hooks(&options.post_drain_hooks));
    let open =
        |list: &[String]| -> Vec<String> { list.iter().filter(|key| get(key) != wanted).cloned().collect() };
    if get(annotations::UNCORDON) == wanted {
        if !after.is_empty() {
            if get(annotations::POST_DRAIN) != wanted {
                return Step::Annotate(annotations::POST_DRAIN, wanted.to_owned());
            }
            if !open(&after).is_empty() {
                return Step::AwaitHooks(open(&after));
            }
        }
        let own = [
            annotations::PRE_DRAIN,
            annotations::POST_DRAIN,
            annotations::DRAIN_OPTIONS,
            annotations::DRAIN_DONE,
            annotations::DRAIN_ERROR,
            annotations::UNCORDON,
        ];
        return Step::Uncordon(own.iter().map(|key| key.to_string()).chain(before).chain(after).collect());
    }
    if get(annotations::DRAIN_DONE) == wanted {
        return Step::Nothing;
    }
    if !cordoned {
        return Step::Cordon;
    }
    if !before.is_empty() {
        if get(annotations::PRE_DRAIN) != wanted {
            return Step::Annotate(annotations::PRE_DRAIN, wanted.to_owned());
        }
        if !open(&before).is_empty() {
            return Step::AwaitHooks(open(&before));
        }
    }
    if options.enabled {
        Step::Drain(options)
    } else {
        Step::Annotate(annotations::DRAIN_DONE, wanted.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays the steps; returns them by name.
    fn play(options: &str, approve: &[&str]) -> Vec<String> {
        let mut notes: BTreeMap<String, String> =
            [(annotations::DRAIN_OPTIONS.to_owned(), options.to_owned())].into();
        let (mut cordoned, mut log, mut uncordon_asked) = (false, vec![], false);
        for _ in 0..20 {
            let step = decide(&notes, cordoned);
            log.push(format!("{step:?}").split(['(', ' ']).next().unwrap_or_default().to_owned());
            match step {
                Step::Cordon => cordoned = true,
                Step::Annotate(key, value) => drop(notes.insert(key.to_owned(), value)),
                Step::AwaitHooks(keys) => {
                    let allowed: Vec<_> =
                        keys.into_iter().filter(|key| approve.contains(&key.as_str())).collect();
                    if allowed.is_empty() {
                        break;
                    }
                    notes.extend(allowed.into_iter().map(|key| (key, options.to_owned())));
                }
                Step::Drain(_) => drop(notes.insert(annotations::DRAIN_DONE.to_owned(), options.to_owned())),
                Step::Uncordon(keys) => {
                    keys.iter().for_each(|key| drop(notes.remove(key)));
                    cordoned = false;
                }
                Step::Nothing if notes.contains_key(annotations::DRAIN_OPTIONS) && !uncordon_asked => {
                    // The planner wrote its plan, and it is in place.
                    uncordon_asked = true;
                    notes.insert(annotations::UNCORDON.to_owned(), options.to_owned());
                }
                Step::Nothing => break,
            }
        }
        if log.last().is_some_and(|step| step == "Nothing") {
            assert!(notes.is_empty(), "nothing remains: {notes:?}");
        }
        log
    }

    #[test]
    fn control_plane_check_13_cordon_drain_uncordon_and_nothing_remains() {
        let steps = play(r#"{"enabled":true}"#, &[]);
        assert_eq!(steps, ["Cordon", "Drain", "Nothing", "Uncordon", "Nothing"]);
    }

    #[test]
    fn control_plane_check_14_hooks_are_waited_for() {
        let options = r#"{"enabled":true,"preDrainHooks":[{"annotation":"x/ok"}]}"#;
        assert_eq!(play(options, &[]), ["Cordon", "Annotate", "AwaitHooks"]);
        let steps = play(options, &["x/ok"]);
        assert_eq!(steps, ["Cordon", "Annotate", "AwaitHooks", "Drain", "Nothing", "Uncordon", "Nothing"]);
    }
}
