//! The hook that keeps an etcd machine until its member has left the cluster: a small reconciler of Machines, too small for
//! rooms of its own. [`decide`] is pure.

use std::fmt;
use std::time::Duration;

use drover_api::capi::v1beta2 as capi;
use drover_api::rke::v1 as rke;
use drover_api::secret_types;
use drover_runtime::events::Note;
use drover_runtime::{Controller, Error, Next, ObjectKey, Reconciler};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::json;

use super::objects;
use crate::context::Context;
use crate::controlplane::planner::runtime::Runtime;
use crate::keys::{annotations, labels};
use crate::owner::owner_name;
use crate::store::Writer;

/// Everything the decision depends on.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The Machine has the etcd role label.
    pub etcd: bool,
    /// The hook is on the Machine.
    pub hook_present: bool,
    pub deleting_since: Option<Timestamp>,
    /// Annotation `rke.cattle.io/etcd-force-remove=true` on the bootstrap.
    pub force: bool,
    /// CAPI Cluster and control plane exist and are not being deleted.
    pub cluster_stays: bool,
    pub has_kubeconfig: bool,
    pub node: NodeView,
    /// The Machine has a nodeRef.
    pub has_node_ref: bool,
    /// Where others join through this machine.
    pub join_url: String,
    /// `joined-to` of every other plan secret of the cluster.
    pub joined_to: Vec<String>,
    /// Etcd machines that are not being deleted, besides this one.
    pub other_etcd: usize,
    /// Etcd machines that are being deleted, this one not counted.
    pub other_etcd_deleting: usize,
}

/// The Node downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeView {
    /// Not looked at yet: most decisions do not depend on it.
    #[default]
    Unread,
    /// The cluster did not answer.
    Unreachable,
    Gone,
    Found {
        /// Annotation `etcd.<runtime>.cattle.io/remove` is `true`.
        removal_asked: bool,
        /// Annotation `etcd.<runtime>.cattle.io/removed-node-name` is set.
        removed: bool,
    },
}

/// Why the hook is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Release {
    Forced,
    ClusterDeleted,
    NeverNode,
    NoKubeconfig,
    NodeGone,
    MemberRemoved,
}

/// Why the hook stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Hold {
    JoinedHere { url: String },
    LastEtcd,
    TwoMembers,
    MemberRemoval,
    Unreachable,
}

/// What to do about the hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Decision {
    Nothing,
    AddHook,
    /// Let the Machine be deleted.
    Release(Release),
    /// Look at the Node, then decide again.
    ReadNode,
    /// Ask the distribution to remove the member.
    AskRemoval,
    /// Keep the hook. Check again at this time, if no event reports the change.
    Hold(Hold, Option<Timestamp>),
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forced => "removal without etcd was requested",
            Self::ClusterDeleted => "the cluster is being deleted",
            Self::NeverNode => "the machine never became a node",
            Self::NoKubeconfig => "the cluster has no kubeconfig",
            Self::NodeGone => "the node no longer exists",
            Self::MemberRemoved => "the etcd member was removed",
        })
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JoinedHere { url } => {
                write!(f, "waiting for other machines to join a server other than {url}")
            }
            Self::LastEtcd => {
                f.write_str("this is the last etcd machine; removing it would lose the cluster's data")
            }
            Self::TwoMembers => f.write_str("waiting for the other etcd machine to settle"),
            Self::MemberRemoval => f.write_str("waiting for its etcd member to be removed"),
            Self::Unreachable => f.write_str(
                "waiting for the cluster to answer: whether etcd has removed the member is not known",
            ),
        }
    }
}

/// When two members remain, the other one is given this long to notice.
const TWO_MEMBERS_PAUSE: SignedDuration = SignedDuration::from_secs(20);
/// What etcd does sends no event.
const AGAIN: SignedDuration = SignedDuration::from_secs(5);

/// Decides.
pub fn decide(scope: &Scope, now: Timestamp) -> Decision {
    let Some(since) = scope.deleting_since else {
        return if scope.etcd && !scope.hook_present { Decision::AddHook } else { Decision::Nothing };
    };
    if !scope.hook_present {
        return Decision::Nothing;
    }
    if scope.force {
        return Decision::Release(Release::Forced);
    }
    if !scope.cluster_stays {
        return Decision::Release(Release::ClusterDeleted);
    }
    if !scope.has_node_ref {
        return Decision::Release(Release::NeverNode);
    }
    // An empty URL means that nothing joins here: the init node's own joined-to is empty too.
    if !scope.join_url.is_empty() && scope.joined_to.contains(&scope.join_url) {
        return Decision::Hold(Hold::JoinedHere { url: scope.join_url.clone() }, None);
    }
    if scope.other_etcd == 0 {
        return Decision::Hold(Hold::LastEtcd, None);
    }
    let due = since.checked_add(TWO_MEMBERS_PAUSE).unwrap_or(now);
    if scope.other_etcd == 1 && scope.other_etcd_deleting == 0 && now < due {
        return Decision::Hold(Hold::TwoMembers, Some(due));
    }
    if !scope.has_kubeconfig {
        return Decision::Release(Release::NoKubeconfig);
    }
    let again = now.checked_add(AGAIN).ok();
    match scope.node {
        NodeView::Unread => Decision::ReadNode,
        NodeView::Unreachable => Decision::Hold(Hold::Unreachable, again),
        NodeView::Gone => Decision::Release(Release::NodeGone),
        NodeView::Found { removed: true, .. } => Decision::Release(Release::MemberRemoved),
        NodeView::Found { removal_asked: true, .. } => Decision::Hold(Hold::MemberRemoval, again),
        NodeView::Found { .. } => Decision::AskRemoval,
    }
}

/// Reconciles the hook of one etcd Machine.
pub struct EtcdHook {
    context: Context,
    writer: Writer,
}

/// Cluster, Node and distribution of a Machine.
struct Place {
    cluster: ObjectKey,
    node: String,
    runtime: Runtime,
}

impl EtcdHook {
    /// The controller with everything that wakes it.
    pub fn controller(context: &Context) -> Controller<Self> {
        let store = &context.store;
        let writer = Writer::new(store, "bootstrap", "hook");
        let controller = Controller::new(Self { context: context.clone(), writer });
        let leaving = {
            let machines = store.machines.clone();
            move |cluster: &ObjectKey| -> Vec<ObjectKey> {
                let all = machines.by_label(labels::capi::CLUSTER_NAME, &cluster.namespace, &cluster.name);
                let held = all
                    .iter()
                    .filter(|machine| machine.metadata.deletion_timestamp.is_some() && has_hook(machine));
                held.map(|machine| ObjectKey::of(machine.as_ref())).collect()
            }
        };
        let (of_machine, of_cluster, of_plane) = (leaving.clone(), leaving.clone(), leaving.clone());
        controller
            .watches(&store.machines, move |change| {
                let Some(machine) = change.either() else { return vec![] };
                let etcd = machine.labels().contains_key(labels::ETCD_ROLE);
                let own = (etcd || has_hook(machine)).then(|| change.key.clone());
                // How many etcd machines are left matters to those that are being deleted.
                let others = change.old.is_none() || change.new.is_none();
                let others = if etcd && others {
                    of_machine(&change.key.sibling(&machine.spec.cluster_name))
                } else {
                    vec![]
                };
                others.into_iter().chain(own).collect()
            })
            .watches(&store.bootstraps, |change| {
                let forced = |bootstrap: &rke::RKEBootstrap| {
                    bootstrap.annotations().get(annotations::ETCD_FORCE_REMOVE).cloned()
                };
                let bootstrap = change.new?;
                let same = change.old.is_some_and(|old| forced(old) == forced(bootstrap));
                let machine = owner_name(&bootstrap.metadata, "cluster.x-k8s.io", "Machine")?;
                (!same).then(|| change.key.sibling(machine))
            })
            .watches(&store.capi_clusters, move |change| of_cluster(change.key))
            .watches(&store.control_planes, move |change| {
                let going = |plane: &std::sync::Arc<rke::RKEControlPlane>| {
                    plane.metadata.deletion_timestamp.is_some()
                };
                let same = change.old.is_some_and(going) == change.new.is_none_or(going);
                if same { vec![] } else { of_plane(change.key) }
            })
            .watches(&store.secrets, move |change| {
                // Another machine joins elsewhere now.
                let Some(secret) = change.either().filter(|secret| is_plan(secret)) else { return vec![] };
                let joined = |secret: Option<&std::sync::Arc<Secret>>| {
                    secret.map(|secret| annotation(secret, annotations::JOINED_TO).to_owned())
                };
                let cluster = secret.labels().get(labels::CLUSTER_NAME);
                match cluster.filter(|_| joined(change.old) != joined(change.new)) {
                    Some(cluster) => leaving(&change.key.sibling(cluster)),
                    None => vec![],
                }
            })
    }

    fn scope(&self, machine: &capi::Machine) -> Scope {
        let store = &self.context.store;
        let key = ObjectKey::of(machine);
        let cluster_key = key.sibling(&machine.spec.cluster_name);
        let (namespace, name) = (key.namespace.as_str(), machine.spec.cluster_name.as_str());
        let cluster = store.capi_clusters.get(&cluster_key);
        let control_plane = store.control_planes.get(&cluster_key);
        let config = machine.spec.bootstrap.config_ref.as_ref();
        let bootstrap = config.and_then(|config| store.bootstraps.get(&key.sibling(&config.name)));
        let own_plan = config.map(|config| objects::plan_name(&config.name)).unwrap_or_default();
        let secrets = store.secrets.by_label(labels::CLUSTER_NAME, namespace, name);
        let (own, others): (Vec<_>, Vec<_>) =
            secrets.iter().filter(|secret| is_plan(secret)).partition(|secret| secret.name_any() == own_plan);
        let machines = store.machines.by_label(labels::capi::CLUSTER_NAME, namespace, name);
        let is_etcd = |machine: &capi::Machine| machine.labels().contains_key(labels::ETCD_ROLE);
        let (leaving, staying): (Vec<_>, Vec<_>) = machines
            .iter()
            .filter(|other| is_etcd(other) && other.metadata.uid != machine.metadata.uid)
            .partition(|other| other.metadata.deletion_timestamp.is_some());
        let kubeconfig = crate::init::kubeconfig::secret_name(name);
        Scope {
            etcd: is_etcd(machine),
            hook_present: has_hook(machine),
            deleting_since: machine.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            force: bootstrap.is_some_and(|bootstrap| {
                bootstrap
                    .annotations()
                    .get(annotations::ETCD_FORCE_REMOVE)
                    .is_some_and(|force| force == "true")
            }),
            cluster_stays: cluster.is_some_and(|cluster| cluster.metadata.deletion_timestamp.is_none())
                && control_plane.is_some_and(|plane| plane.metadata.deletion_timestamp.is_none()),
            has_kubeconfig: store.secrets.get(&key.sibling(kubeconfig)).is_some(),
            node: NodeView::Unread,
            has_node_ref: machine.status.as_ref().is_some_and(|status| status.node_ref.is_some()),
            join_url: own
                .first()
                .map(|own| annotation(own, annotations::JOIN_URL))
                .unwrap_or_default()
                .to_owned(),
            joined_to: others
                .iter()
                .map(|other| annotation(other, annotations::JOINED_TO).to_owned())
                .collect(),
            other_etcd: staying.len(),
            other_etcd_deleting: leaving.len(),
        }
    }

    fn place(&self, machine: &capi::Machine) -> Option<Place> {
        let key = ObjectKey::of(machine).sibling(&machine.spec.cluster_name);
        let control_plane = self.context.store.control_planes.get(&key)?;
        Some(Place {
            runtime: Runtime::of_version(&control_plane.spec.kubernetes_version),
            node: machine.status.as_ref()?.node_ref.as_ref()?.name.clone(),
            cluster: key,
        })
    }

    async fn read_node(&self, key: &ObjectKey, place: &Place) -> NodeView {
        // Not from the copy: the member is released if the Node does not exist.
        let node = match self.context.downstream.cluster(&place.cluster) {
            Ok(cluster) => cluster.node(&place.node).await.map_err(|error| error.to_string()),
            Err(lost) => Err(lost.why.to_string()),
        };
        match node {
            Ok(node) => node.map_or(NodeView::Gone, |node| node_view(&node, place.runtime)),
            Err(error) => {
                tracing::debug!(machine = %key, error, "failed to read the Node of an etcd machine");
                NodeView::Unreachable
            }
        }
    }

    /// Adds the hook, or removes it.
    async fn set_hook(&self, machine: &capi::Machine, present: bool) -> Result<(), Error> {
        let value = present.then_some(annotations::ETCD_HOOK_OWNER);
        let patch = json!({"metadata": {
            "uid": machine.metadata.uid, "annotations": {annotations::ETCD_HOOK: value},
        }});
        self.writer.merge::<capi::Machine>(&ObjectKey::of(machine), patch).await
    }

    async fn ask_removal(&self, machine: &capi::Machine, place: &Place) -> Result<(), Error> {
        let mark = format!("etcd.{}.cattle.io/remove", place.runtime.name());
        let patch = json!({"metadata": {"annotations": {mark: "true"}}});
        let cluster = self.context.downstream.cluster(&place.cluster);
        let cluster = cluster.map_err(|lost| Error::other("ask etcd to remove a member")(lost.why))?;
        let asked = cluster.patch_node("drover-provisioning", &place.node, patch).await;
        asked.map_err(Error::api("ask etcd to remove a member"))?;
        let message = format!("Asked etcd to remove the member of Node {}", place.node);
        self.context.events.publish(machine, [&Note::normal("EtcdRemovalAsked", message)]);
        Ok(())
    }
}

impl Reconciler for EtcdHook {
    const NAME: &'static str = "etcdhook";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(machine) = self.context.store.machines.get(&key) else { return Ok(Next::EVENT) };
        let (held, deleting) = (has_hook(&machine), machine.metadata.deletion_timestamp.is_some());
        let is_ours = machine.spec.bootstrap.config_ref.as_ref().is_some_and(|c| c.kind == "RKEBootstrap");
        // Nothing to do, and the scope is made of all machines of the cluster.
        let etcd = machine.labels().contains_key(labels::ETCD_ROLE);
        if !is_ours || held != deleting || !(held || etcd) {
            return Ok(Next::EVENT);
        }
        let now = self.context.now();
        let mut scope = self.scope(&machine);
        let mut decision = decide(&scope, now);
        let place = self.place(&machine);
        if let (Decision::ReadNode, Some(place)) = (&decision, &place) {
            scope.node = self.read_node(&key, place).await;
            decision = decide(&scope, now);
        }
        match decision {
            Decision::Nothing | Decision::ReadNode => Ok(Next::EVENT),
            Decision::AddHook => self.set_hook(&machine, true).await.map(|()| Next::EVENT),
            Decision::Release(why) => {
                tracing::info!(machine = %key, %why, "etcd no longer blocks deletion");
                self.set_hook(&machine, false).await?;
                let message = format!("etcd no longer blocks deletion: {why}");
                self.context
                    .events
                    .publish(machine.as_ref(), [&Note::normal("EtcdRemovalReleased", message)]);
                Ok(Next::EVENT)
            }
            Decision::AskRemoval => {
                if let Some(place) = &place {
                    self.ask_removal(&machine, place).await?;
                }
                Ok(Next::after(Duration::from_secs(5)))
            }
            Decision::Hold(why, due) => {
                let note = Note::normal("EtcdRemovalHeld", why.to_string()).standing();
                self.context.events.publish(machine.as_ref(), [&note]);
                Ok(self.context.next(due))
            }
        }
    }
}

fn has_hook(machine: &capi::Machine) -> bool {
    machine.annotations().contains_key(annotations::ETCD_HOOK)
}

fn is_plan(secret: &Secret) -> bool {
    secret.type_.as_deref() == Some(secret_types::MACHINE_PLAN)
}

fn annotation<'a>(secret: &'a Secret, key: &str) -> &'a str {
    secret.annotations().get(key).map(String::as_str).unwrap_or_default()
}

fn node_view(node: &Node, runtime: Runtime) -> NodeView {
    let mark = |suffix: &str| node.annotations().get(&format!("etcd.{}.cattle.io/{suffix}", runtime.name()));
    NodeView::Found {
        removal_asked: mark("remove").is_some_and(|value| value == "true"),
        removed: mark("removed-node-name").is_some_and(|name| !name.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUND: NodeView = NodeView::Found { removal_asked: false, removed: false };

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn leaving() -> Scope {
        Scope {
            etcd: true,
            hook_present: true,
            deleting_since: Some(at("2026-01-01T00:00:00Z")),
            cluster_stays: true,
            has_kubeconfig: true,
            has_node_ref: true,
            node: FOUND,
            other_etcd: 2,
            ..Scope::default()
        }
    }

    #[test]
    fn only_living_etcd_machines_get_the_hook() {
        let now = at("2026-01-01T00:00:00Z");
        let scope = Scope { etcd: true, ..Scope::default() };
        assert_eq!(decide(&scope, now), Decision::AddHook);
        assert_eq!(decide(&Scope::default(), now), Decision::Nothing);
        assert_eq!(decide(&Scope { hook_present: true, ..scope }, now), Decision::Nothing);
    }

    #[test]
    fn control_plane_check_21_and_22_order_of_removal() {
        let now = at("2026-01-01T00:00:10Z");
        let scope = leaving();
        assert_eq!(decide(&scope, now), Decision::AskRemoval);
        let joined = Scope {
            join_url: "https://a:6443".into(),
            joined_to: vec!["https://a:6443".into()],
            ..leaving()
        };
        let here = Hold::JoinedHere { url: "https://a:6443".into() };
        assert_eq!(decide(&joined, now), Decision::Hold(here, None));
        let no_url = Scope { joined_to: vec![String::new()], ..leaving() };
        assert_eq!(decide(&no_url, now), Decision::AskRemoval, "an empty url blocks nothing");
        let two = Scope { other_etcd: 1, ..leaving() };
        assert_eq!(decide(&two, now), Decision::Hold(Hold::TwoMembers, Some(at("2026-01-01T00:00:20Z"))));
        let last = Scope { other_etcd: 0, ..leaving() };
        assert_eq!(decide(&last, now), Decision::Hold(Hold::LastEtcd, None));
        let again = Some(at("2026-01-01T00:00:15Z"));
        for (node, decision) in [
            (NodeView::Unread, Decision::ReadNode),
            (NodeView::Unreachable, Decision::Hold(Hold::Unreachable, again)),
            (NodeView::Gone, Decision::Release(Release::NodeGone)),
            (
                NodeView::Found { removal_asked: true, removed: false },
                Decision::Hold(Hold::MemberRemoval, again),
            ),
            (
                NodeView::Found { removal_asked: true, removed: true },
                Decision::Release(Release::MemberRemoved),
            ),
        ] {
            assert_eq!(decide(&Scope { node, ..leaving() }, now), decision);
        }
        for (edit, release) in [
            ((|s: &mut Scope| s.force = true) as fn(&mut Scope), Release::Forced),
            (|s| s.cluster_stays = false, Release::ClusterDeleted),
            (|s| s.has_node_ref = false, Release::NeverNode),
            (|s| s.has_kubeconfig = false, Release::NoKubeconfig),
        ] {
            let mut scope = leaving();
            edit(&mut scope);
            assert_eq!(decide(&scope, now), Decision::Release(release), "{scope:?}");
        }
    }

    /// Every state, with decisions carried out and nothing else moving: no decision is carried out for ever.
    #[test]
    fn decisions_come_to_an_end_from_any_state() {
        let since = at("2026-01-01T00:00:00Z");
        let nodes = [NodeView::Unread, NodeView::Unreachable, NodeView::Gone, FOUND];
        for bits in 0..(1_u32 << 8) {
            let bit = |n: u32| bits >> n & 1 == 1;
            for (node, other_etcd) in nodes.into_iter().flat_map(|node| (0..3).map(move |n| (node, n))) {
                let mut scope = Scope {
                    etcd: bit(0),
                    hook_present: bit(1),
                    deleting_since: bit(2).then_some(since),
                    force: bit(3),
                    cluster_stays: bit(4),
                    has_kubeconfig: bit(5),
                    has_node_ref: bit(6),
                    join_url: "u".into(),
                    joined_to: if bit(7) { vec!["u".into()] } else { vec![] },
                    node,
                    other_etcd,
                    other_etcd_deleting: 0,
                };
                let ends = (0..4).any(|_| {
                    match decide(&scope, since) {
                        Decision::Nothing | Decision::Hold(..) => return true,
                        Decision::AddHook => scope.hook_present = true,
                        Decision::Release(_) => scope.hook_present = false,
                        Decision::ReadNode => scope.node = FOUND,
                        Decision::AskRemoval => {
                            scope.node = NodeView::Found { removal_asked: true, removed: false };
                        }
                    }
                    false
                });
                assert!(ends, "{scope:?}");
            }
        }
    }
}
