//! The hook that keeps an etcd machine until its member has left the cluster.

use jiff::{SignedDuration, Timestamp};

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
    /// CAPI Cluster and control plane exist and stay.
    pub cluster_stays: bool,
    pub has_kubeconfig: bool,
    pub node: Option<NodeView>,
    /// The Machine has a nodeRef.
    pub has_node_ref: bool,
    /// Where others join through this machine.
    pub join_url: String,
    /// `joined-to` of every other plan secret of the cluster.
    pub joined_to: Vec<String>,
    /// Etcd machines that stay, besides this one.
    pub other_etcd: usize,
    /// Etcd machines that are being deleted, this one not counted.
    pub other_etcd_deleting: usize,
}

/// The Node downstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Annotation `etcd.<runtime>.cattle.io/remove` is `true`.
    pub removal_asked: bool,
    /// Annotation `etcd.<runtime>.cattle.io/removed-node-name` is set.
    pub removed: bool,
}

/// What to do about the hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Nothing,
    AddHook,
    /// Let the Machine go, for this reason.
    Release(&'static str),
    /// Ask the distribution to remove the member.
    AskRemoval,
    /// Keep it; why, and when to look again if no event will tell.
    Hold(String, Option<Timestamp>),
}

/// When two members remain, the other one is given this long to notice.
const TWO_MEMBERS_PAUSE: SignedDuration = SignedDuration::from_secs(20);

/// Decides.
pub fn decide(scope: &Scope, now: Timestamp) -> Decision {
    let Some(since) = scope.deleting_since else {
        return if scope.etcd && !scope.hook_present { Decision::AddHook } else { Decision::Nothing };
    };
    if !scope.hook_present {
        return Decision::Nothing;
    }
    if scope.force {
        return Decision::Release("removal without etcd was asked for");
    }
    if !scope.cluster_stays {
        return Decision::Release("the cluster goes away");
    }
    if !scope.has_node_ref {
        return Decision::Release("it never became a node");
    }
    // An empty URL is nobody's: the init node's own joined-to is empty too.
    if !scope.join_url.is_empty() && scope.joined_to.contains(&scope.join_url) {
        return Decision::Hold(
            format!("waiting for other machines to join elsewhere than {}", scope.join_url),
            None,
        );
    }
    if scope.other_etcd == 0 {
        return Decision::Hold(
            "this is the last etcd machine; removing it would lose the cluster's data".to_owned(),
            None,
        );
    }
    let due = since.checked_add(TWO_MEMBERS_PAUSE).unwrap_or(now);
    if scope.other_etcd == 1 && scope.other_etcd_deleting == 0 && now < due {
        return Decision::Hold("waiting for the other etcd machine to settle".to_owned(), Some(due));
    }
    if !scope.has_kubeconfig {
        return Decision::Release("the cluster has no kubeconfig");
    }
    match &scope.node {
        None => Decision::Release("its node is gone"),
        Some(node) if node.removed => Decision::Release("its etcd member was removed"),
        Some(node) if node.removal_asked => {
            let again = now.checked_add(SignedDuration::from_secs(5)).ok();
            Decision::Hold("waiting for its etcd member to be removed".to_owned(), again)
        }
        Some(_) => Decision::AskRemoval,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            node: Some(NodeView::default()),
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
        assert!(matches!(decide(&joined, now), Decision::Hold(why, None) if why.contains("https://a:6443")));
        let no_url = Scope { joined_to: vec![String::new()], ..leaving() };
        assert_eq!(decide(&no_url, now), Decision::AskRemoval, "an empty url blocks nobody");
        let two = Scope { other_etcd: 1, ..leaving() };
        assert!(
            matches!(decide(&two, now), Decision::Hold(_, Some(due)) if due == at("2026-01-01T00:00:20Z"))
        );
        let asked = Scope { node: Some(NodeView { removal_asked: true, removed: false }), ..leaving() };
        assert!(matches!(decide(&asked, now), Decision::Hold(_, Some(_))));
        let removed = Scope { node: Some(NodeView { removal_asked: true, removed: true }), ..leaving() };
        assert!(matches!(decide(&removed, now), Decision::Release(_)));
        let last = Scope { other_etcd: 0, ..leaving() };
        assert!(matches!(decide(&last, now), Decision::Hold(why, None) if why.contains("last etcd machine")));
        for edit in [
            (|s: &mut Scope| s.force = true) as fn(&mut Scope),
            |s| s.cluster_stays = false,
            |s| s.has_node_ref = false,
            |s| s.has_kubeconfig = false,
            |s| s.node = None,
        ] {
            let mut scope = leaving();
            edit(&mut scope);
            assert!(matches!(decide(&scope, now), Decision::Release(_)), "{scope:?}");
        }
    }
}
