//! The other side of a drain: cordon, hooks, evict, and afterwards uncordon. Too small for rooms of its own: [`decide`] is
//! pure, and so is [`super::drain`], which says which pods are evicted.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use drover_access_api::{ClusterHandle, Eviction, PodRemoval};
use drover_api::rke::v1::DrainOptions;
use drover_api::secret_types;
use drover_runtime::{Controller, Error, Next, ObjectKey, Reconciler};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::json;

use super::drain;
use super::observe::machine_of;
use crate::context::Context;
use crate::keys::{annotations, labels};
use crate::plansecret::edit::with_annotation;
use crate::store::Writer;

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

/// Whether a drain is asked for on a plan secret.
fn is_asked(secret: &Secret) -> bool {
    secret.type_.as_deref() == Some(secret_types::MACHINE_PLAN)
        && secret.annotations().get(annotations::DRAIN_OPTIONS).is_some_and(|options| !options.is_empty())
}

/// Reconciles the drain of one plan secret's machine.
pub struct MachineDrain {
    context: Context,
    writer: Writer,
    /// Since when, and by which options, a machine is being drained. Only the limit goes by it, so that a restart
    /// gives a drain its time again.
    begun: Mutex<HashMap<ObjectKey, (String, Timestamp)>>,
}

/// Pods that leave and evictions that are held send no event here.
const AGAIN: Duration = Duration::from_secs(2);
/// How long a drain may take before it is called failed, unless its options say.
const LIMIT_SECONDS: i64 = 600;

impl MachineDrain {
    /// The controller with what wakes it: plan secrets of machines that are, or were, to be drained.
    pub fn controller(context: &Context) -> Controller<Self> {
        let controller = Controller::new(Self {
            context: context.clone(),
            writer: Writer::new(&context.store, "machinedrain", "secret"),
            begun: Mutex::default(),
        });
        controller.watches(&context.store.secrets, |change| {
            let mut versions = change.old.into_iter().chain(change.new);
            versions.any(|secret| is_asked(secret)).then(|| change.key.clone())
        })
    }

    /// Makes pods leave; what is still there, in words, or nothing.
    async fn drain(
        &self,
        cluster: &ClusterHandle,
        node: &str,
        options: &DrainOptions,
    ) -> Result<Option<String>, String> {
        let pods = cluster.pods(node).await.map_err(|error| error.to_string())?;
        let drain = drain::judge(&pods, options, self.context.now());
        if let Some(why) = drain.refused {
            return Err(why);
        }
        let grace_seconds = u32::try_from(options.grace_period).ok();
        let how = PodRemoval { force: options.disable_eviction, grace_seconds };
        let mut held = Vec::new();
        for (namespace, name) in &drain.evict {
            let removed = cluster.remove_pod(namespace, name, how).await;
            if let Eviction::Blocked(why) = removed.map_err(|error| error.to_string())? {
                held.push(format!("{namespace}/{name}: {why}"));
            }
        }
        if !held.is_empty() {
            return Err(held.join("; "));
        }
        let mut left = drain.leaving;
        left.extend(drain.evict);
        let names: Vec<String> = left.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        Ok((!names.is_empty()).then(|| names.join(", ")))
    }

    /// Whether a drain has taken longer than it may.
    fn is_overdue(&self, key: &ObjectKey, wanted: &str, options: &DrainOptions) -> Option<i64> {
        let now = self.context.now();
        let mut begun = self.begun.lock();
        let entry = begun.entry(key.clone()).or_insert_with(|| (wanted.to_owned(), now));
        if entry.0 != wanted {
            *entry = (wanted.to_owned(), now);
        }
        let limit = if options.timeout > 0 { options.timeout } else { LIMIT_SECONDS };
        (now.duration_since(entry.1).as_secs() >= limit).then_some(limit)
    }

    /// Key of the cluster and name of the machine's Node, once both are known.
    fn place(&self, key: &ObjectKey, secret: &Secret) -> Option<(ObjectKey, String)> {
        let store = &self.context.store;
        let label = |name: &str| secret.metadata.labels.as_ref()?.get(name).cloned();
        let machine = machine_of(store, secret)?;
        let node = machine.status.as_ref()?.node_ref.as_ref()?.name.clone();
        Some((key.sibling(label(labels::CLUSTER_NAME)?), node))
    }

    async fn cordon(&self, cluster: &ClusterHandle, node: &str, on: bool) -> Result<(), Error> {
        let patch = json!({"spec": {"unschedulable": if on { json!(true) } else { json!(null) }}});
        let sent = cluster.patch_node("drover-provisioning", node, patch).await;
        sent.map_err(Error::api(format!("cordon or uncordon Node {node}")))
    }
}

impl Reconciler for MachineDrain {
    const NAME: &'static str = "machinedrain";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(secret) = self.context.store.secrets.get(&key) else {
            self.begun.lock().remove(&key);
            return Ok(Next::EVENT);
        };
        if !is_asked(&secret) {
            self.begun.lock().remove(&key);
            return Ok(Next::EVENT);
        }
        let notes = secret.annotations().clone();
        let Some((cluster, node)) = self.place(&key, &secret) else { return Ok(Next::EVENT) };
        let cluster = self.context.downstream.cluster(&cluster);
        let cluster = cluster.map_err(|lost| Error::other(format!("drain Node {node}"))(lost.why))?;
        let live = cluster.node(&node).await.map_err(Error::api(format!("get Node {node}")))?;
        // A Node that is gone needs no cordon and holds no pod.
        let gone = live.is_none();
        let cordoned = live.and_then(|node| node.spec?.unschedulable).unwrap_or(gone);
        let set = |key: &str, value: &str| with_annotation(&secret, key, value);
        match decide(&notes, cordoned) {
            Step::Nothing | Step::AwaitHooks(_) => Ok(Next::EVENT),
            Step::Cordon => {
                self.cordon(&cluster, &node, true).await.map(|()| Next::after(Duration::from_millis(20)))
            }
            Step::Annotate(name, value) => {
                self.writer.put_secret(&set(name, &value)).await.map(|()| Next::EVENT)
            }
            Step::Drain(options) => {
                let wanted = notes.get(annotations::DRAIN_OPTIONS).cloned().unwrap_or_default();
                // Nothing runs on a Node that is gone.
                let drained = if gone { Ok(None) } else { self.drain(&cluster, &node, &options).await };
                let trouble = match drained {
                    Ok(None) => {
                        self.begun.lock().remove(&key);
                        let done = set(annotations::DRAIN_DONE, &wanted);
                        let done = with_annotation(&done, annotations::DRAIN_ERROR, "");
                        return self.writer.put_secret(&done).await.map(|()| Next::EVENT);
                    }
                    Ok(Some(left)) => self
                        .is_overdue(&key, &wanted, &options)
                        .map(|limit| format!("not drained within {limit} s, still there: {left}")),
                    Err(why) => Some(why),
                };
                let told = notes.get(annotations::DRAIN_ERROR).map(String::as_str).unwrap_or_default();
                let trouble = trouble.unwrap_or_default();
                if told != trouble {
                    self.writer.put_secret(&set(annotations::DRAIN_ERROR, &trouble)).await?;
                }
                Ok(Next::after(AGAIN))
            }
            Step::Uncordon(names) => {
                if !gone {
                    self.cordon(&cluster, &node, false).await?;
                }
                let mut next = (*secret).clone();
                names.iter().for_each(|name| next = with_annotation(&next, name, ""));
                self.writer.put_secret(&next).await.map(|()| Next::EVENT)
            }
        }
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
