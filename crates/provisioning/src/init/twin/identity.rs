//! Which management Cluster belongs to a provisioning Cluster. Pure.
//!
//! The id is derived from the Cluster's uid, unless an annotation names one. The management Cluster and the namespace of
//! that id are written, and deleted with the Cluster. A person who may edit a Cluster, and perhaps its status, must not
//! reach those of another cluster this way. Therefore an id must have the form of an id, and the management Cluster and the
//! namespace must provably belong to the Cluster: by the annotation `drover.io/cluster-uid`, which the management plane
//! writes on both; by `status.info.provisioningClusterRef`; or, where Rancher or an older Drover created them, by display
//! name and workspace.

use std::sync::Arc;

use drover_api::management::v3 as management;
use drover_api::provisioning::v1::Cluster;
use drover_runtime::ObjectKey;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;

use super::annotation;
use crate::init::names::management_cluster_name;
use crate::keys::annotations;

/// The id of a Cluster's management Cluster, and what it was taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub id: String,
    pub source: Source,
    /// Follows from the Cluster's uid, so that no other Cluster can have it.
    pub derived: bool,
}

/// What an id was taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The management Cluster itself, which has the uid of this Cluster.
    Twin,
    Status,
    Annotation,
    #[default]
    Uid,
}

/// Why an id is not used: nothing is written or deleted under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub identity: Identity,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The text is not an id.
    NotAnId,
    /// Another Cluster has the id.
    OfAnotherCluster,
    /// The management Cluster exists, and nothing shows that it is this Cluster's.
    UnknownTwin,
    /// The same of the namespace.
    UnknownNamespace,
}

/// What is known about an id.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Other Clusters with the id.
    pub others: Vec<Arc<Cluster>>,
    pub twin: Option<Arc<management::Cluster>>,
    pub namespace: Option<Arc<Namespace>>,
    /// Whether the Cluster exists whose uid the management Cluster has, and the same of the namespace.
    pub twin_owner_exists: bool,
    pub namespace_owner_exists: bool,
    /// Whether the Cluster exists that the management Cluster refers to.
    pub referenced_exists: bool,
}

/// The id that a Cluster would have. `twins` are the management Clusters with its uid.
pub fn wanted(cluster: &Cluster, twins: &[Arc<management::Cluster>]) -> Identity {
    let derived = management_cluster_name(uid(cluster));
    let status = cluster.management_id().unwrap_or_default();
    let chosen = annotation(cluster, annotations::MANAGEMENT_CLUSTER_NAME);
    let (id, source) = match (status, chosen) {
        ("", "") => (derived.as_str(), Source::Uid),
        ("", chosen) => (chosen, Source::Annotation),
        (status, _) => (status, Source::Status),
    };
    let own = |id: &&str| twins.iter().any(|twin| twin.name_any() == **id);
    // What a person wrote into the status does not move a cluster away from the management Cluster that it has.
    let known = [status, chosen, &derived].into_iter().find(own).map(str::to_owned);
    let known = known.or_else(|| twins.first().map(|twin| twin.name_any()));
    let (id, source) = known.map_or((id.to_owned(), source), |known| (known, Source::Twin));
    Identity { derived: id == derived, id, source }
}

/// The ids under which a Cluster may be meant: the one it names, and the one that follows from its uid.
pub fn claims(cluster: &Cluster) -> Vec<String> {
    let mut ids = vec![wanted(cluster, &[]).id, management_cluster_name(uid(cluster))];
    ids.dedup();
    ids
}

/// Whether a Cluster may use the id: if not, nothing may be written under it.
pub fn check(cluster: &Cluster, identity: &Identity, evidence: &Evidence) -> Result<(), Refusal> {
    let refuse = |why| Err(Refusal { identity: identity.clone(), why });
    if !is_id(&identity.id) {
        return refuse(Why::NotAnId);
    }
    if evidence.others.iter().any(|other| management_cluster_name(uid(other)) == identity.id) {
        return refuse(Why::OfAnotherCluster);
    }
    match evidence.twin.as_deref().map(|twin| owner_of_twin(cluster, identity, twin, evidence)) {
        Some(Owner::This) => {}
        Some(Owner::Another) => return refuse(Why::OfAnotherCluster),
        Some(Owner::Unknown) => return refuse(Why::UnknownTwin),
        None if identity.derived => {}
        None if evidence.namespace.as_deref().is_some_and(|namespace| has_uid_of(cluster, namespace)) => {}
        // Of Clusters that name the same id, the oldest gets it.
        None if evidence.others.iter().any(|other| age(other) < age(cluster)) => {
            return refuse(Why::OfAnotherCluster);
        }
        None => {}
    }
    let Some(namespace) = &evidence.namespace else { return Ok(()) };
    match namespace.annotations().get(annotations::CLUSTER_UID) {
        Some(owner) if owner == uid(cluster) => Ok(()),
        Some(_) if evidence.namespace_owner_exists => refuse(Why::OfAnotherCluster),
        _ if evidence.twin.is_some() || identity.derived => Ok(()),
        _ => refuse(Why::UnknownNamespace),
    }
}

fn has_uid_of(cluster: &Cluster, namespace: &Namespace) -> bool {
    namespace.annotations().get(annotations::CLUSTER_UID).is_some_and(|owner| owner == uid(cluster))
}

enum Owner {
    This,
    Another,
    Unknown,
}

fn owner_of_twin(
    cluster: &Cluster,
    identity: &Identity,
    twin: &management::Cluster,
    evidence: &Evidence,
) -> Owner {
    match twin.annotations().get(annotations::CLUSTER_UID) {
        Some(owner) if owner == uid(cluster) => return Owner::This,
        Some(_) if evidence.twin_owner_exists => return Owner::Another,
        None if identity.derived => return Owner::This,
        // Its Cluster is gone. One that was restored from a backup has another uid.
        _ => {}
    }
    let key = ObjectKey::of(cluster);
    match reference(twin) {
        Some(referenced) if referenced == key => Owner::This,
        Some(_) if evidence.referenced_exists => Owner::Another,
        Some(_) => Owner::Unknown,
        // The annotation for the workspace does not count: a Cluster of the same name elsewhere could name this one's.
        None if twin.spec.display_name == key.name && twin.spec.fleet_workspace_name == key.namespace => {
            Owner::This
        }
        None => Owner::Unknown,
    }
}

/// The provisioning Cluster that a management Cluster refers to.
pub fn reference(twin: &management::Cluster) -> Option<ObjectKey> {
    let reference = twin.status.as_ref()?.info.as_ref()?.provisioning_cluster_ref.as_ref()?;
    let name = reference.name.clone().filter(|name| !name.is_empty())?;
    Some(ObjectKey::new(reference.namespace.clone().unwrap_or_default(), name))
}

/// Whether a namespace was made for this Cluster: only such a one is deleted with it.
pub fn owns_namespace(cluster: &Cluster, identity: &Identity, namespace: &Namespace) -> bool {
    match namespace.annotations().get(annotations::CLUSTER_UID) {
        Some(owner) => owner == uid(cluster),
        None => identity.derived,
    }
}

/// Ids that Rancher gives: `c-m-` and eight characters, and of old `c-` and five.
pub fn is_id(text: &str) -> bool {
    let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    match (text.strip_prefix("c-m-"), text.strip_prefix("c-")) {
        (Some(rest), _) => rest.len() == 8 && is_word(rest),
        (None, Some(rest)) => rest.len() == 5 && is_word(rest),
        _ => false,
    }
}

fn uid(cluster: &Cluster) -> &str {
    cluster.metadata.uid.as_deref().unwrap_or_default()
}

fn age(cluster: &Cluster) -> (Option<jiff::Timestamp>, &str) {
    (cluster.metadata.creation_timestamp.as_ref().map(|time| time.0), uid(cluster))
}

impl Refusal {
    /// The status names what certainly belongs to another Cluster. It is cleared: the proxy would otherwise not know whose
    /// the id is.
    pub fn clears_status(&self) -> bool {
        self.identity.source == Source::Status && self.why == Why::OfAnotherCluster
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = &self.identity.id;
        let (field, fix) = match self.identity.source {
            Source::Annotation => (
                format!("annotation {}: ", annotations::MANAGEMENT_CLUSTER_NAME),
                "remove the annotation, or set it to an id that is not in use",
            ),
            Source::Status => ("status.clusterName: ".to_owned(), "clear the field"),
            Source::Twin | Source::Uid => (
                String::new(),
                "recreate the cluster, or ask the administrator of the management plane to delete what has its id",
            ),
        };
        f.write_str(&field)?;
        match self.why {
            Why::NotAnId => write!(
                f,
                "{id:?} is not the id of a management cluster, which is c-m- and 8, or c- and 5, lower-case letters and digits"
            )?,
            Why::OfAnotherCluster => write!(f, "management cluster {id} belongs to another cluster")?,
            Why::UnknownTwin => {
                write!(f, "management cluster {id} exists and was not created for this cluster")?;
            }
            Why::UnknownNamespace => {
                write!(f, "namespace {id} exists and was not created for this cluster")?;
            }
        }
        write!(f, ": {fix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const ID: &str = "c-m-chosen12";

    fn cluster(namespace: &str, name: &str, uid: &str, created: &str) -> Cluster {
        serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "creationTimestamp": created},
            "spec": {},
        }))
        .unwrap()
    }

    fn mine() -> Cluster {
        let mut cluster = cluster("team", "demo", "uid-1", "2026-01-02T00:00:00Z");
        cluster.annotations_mut().insert(annotations::MANAGEMENT_CLUSTER_NAME.into(), ID.into());
        cluster
    }

    fn twin(annotations: Value, display: &str, workspace: &str, referenced: Option<&str>) -> Evidence {
        let info = referenced.map(|name| {
            json!({"info": {"provisioningClusterRef": {"kind": "Cluster", "namespace": "team", "name": name}}})
        });
        let twin = serde_json::from_value(json!({
            "metadata": {"name": ID, "annotations": annotations},
            "spec": {"displayName": display, "fleetWorkspaceName": workspace},
            "status": info,
        }));
        Evidence { twin: Some(Arc::new(twin.unwrap())), ..Evidence::default() }
    }

    fn namespace(annotations: Value) -> Option<Arc<Namespace>> {
        let namespace = json!({"metadata": {"name": ID, "annotations": annotations}});
        Some(Arc::new(serde_json::from_value(namespace).unwrap()))
    }

    fn why(cluster: &Cluster, evidence: &Evidence) -> Option<Why> {
        check(cluster, &wanted(cluster, &[]), evidence).err().map(|refusal| refusal.why)
    }

    #[test]
    fn only_the_ids_that_rancher_gives_are_ids() {
        for id in ["c-m-abcd1234", "c-abc12"] {
            assert!(is_id(id), "{id}");
        }
        for id in [
            "kube-system",
            "default",
            "local",
            "c-m-abcd",
            "c-m-abcd12345",
            "c-m-ABCD1234",
            "c-m-abcd/../",
            "c-",
            "",
            "C-m-abcd1234",
        ] {
            assert!(!is_id(id), "{id}");
        }
    }

    #[test]
    fn without_annotation_the_id_follows_from_the_uid() {
        let cluster = cluster("team", "demo", "uid-1", "2026-01-02T00:00:00Z");
        let identity = wanted(&cluster, &[]);
        assert_eq!((identity.source, identity.derived), (Source::Uid, true));
        assert_eq!(identity.id, management_cluster_name("uid-1"));
        assert_eq!(check(&cluster, &identity, &Evidence::default()), Ok(()));
    }

    #[test]
    fn a_namespace_or_another_name_is_not_an_id() {
        for name in ["kube-system", "default", "c-m-../../x"] {
            let mut cluster = mine();
            cluster.annotations_mut().insert(annotations::MANAGEMENT_CLUSTER_NAME.into(), name.into());
            let refusal = check(&cluster, &wanted(&cluster, &[]), &Evidence::default()).unwrap_err();
            assert_eq!(refusal.why, Why::NotAnId);
            let text = refusal.to_string();
            assert!(
                text.starts_with("annotation provisioning.cattle.io/management-cluster-name: "),
                "{text}"
            );
            assert!(
                text.contains(name.trim_start_matches("c-m-")) && text.contains("remove the annotation"),
                "{text}"
            );
        }
    }

    #[test]
    fn of_two_clusters_with_one_id_the_older_gets_it_and_the_owner_of_the_uid_always() {
        let older = Arc::new(cluster("a", "x", "uid-0", "2026-01-01T00:00:00Z"));
        let younger = Arc::new(cluster("a", "x", "uid-2", "2026-01-03T00:00:00Z"));
        let with = |other: &Arc<Cluster>| Evidence { others: vec![other.clone()], ..Evidence::default() };
        assert_eq!(why(&mine(), &with(&older)), Some(Why::OfAnotherCluster));
        assert_eq!(why(&mine(), &with(&younger)), None);
        let mut thief = mine();
        let id = management_cluster_name("uid-2");
        thief.annotations_mut().insert(annotations::MANAGEMENT_CLUSTER_NAME.into(), id);
        assert_eq!(why(&younger, &with(&Arc::new(thief.clone()))), None, "an older claim does not take it");
        assert_eq!(why(&thief, &with(&younger)), Some(Why::OfAnotherCluster), "its uid gives it the id");
    }

    #[test]
    fn a_management_cluster_belongs_to_the_cluster_with_its_uid() {
        let own = twin(json!({"drover.io/cluster-uid": "uid-1"}), "demo", "team", None);
        assert_eq!(why(&mine(), &own), None);
        let older = Arc::new(cluster("a", "x", "uid-0", "2026-01-01T00:00:00Z"));
        assert_eq!(why(&mine(), &Evidence { others: vec![older], ..own }), None, "age does not matter then");
        let other = twin(json!({"drover.io/cluster-uid": "uid-2"}), "demo", "team", Some("demo"));
        let exists = Evidence { twin_owner_exists: true, ..other.clone() };
        assert_eq!(why(&mine(), &exists), Some(Why::OfAnotherCluster));
        assert_eq!(why(&mine(), &other), None, "restored from a backup, with another uid");
    }

    #[test]
    fn an_older_management_cluster_belongs_to_the_cluster_that_it_refers_to_or_is_named_after() {
        assert_eq!(why(&mine(), &twin(json!({}), "demo", "elsewhere", Some("demo"))), None);
        let other = twin(json!({}), "demo", "team", Some("other"));
        assert_eq!(why(&mine(), &other), Some(Why::UnknownTwin));
        let other = Evidence { referenced_exists: true, ..other };
        assert_eq!(why(&mine(), &other), Some(Why::OfAnotherCluster));
        assert_eq!(why(&mine(), &twin(json!({}), "demo", "team", None)), None);
        for (display, workspace) in [("demo", "other"), ("other", "team"), ("", "")] {
            assert_eq!(why(&mine(), &twin(json!({}), display, workspace, None)), Some(Why::UnknownTwin));
        }
    }

    #[test]
    fn a_workspace_that_an_annotation_names_proves_nothing() {
        let mut cluster = mine();
        cluster.annotations_mut().insert(annotations::FLEET_WORKSPACE_NAME.into(), "victim".into());
        assert_eq!(why(&cluster, &twin(json!({}), "demo", "victim", None)), Some(Why::UnknownTwin));
    }

    #[test]
    fn a_namespace_without_its_management_cluster_is_not_adopted() {
        let with = |annotations: Value| Evidence { namespace: namespace(annotations), ..Evidence::default() };
        for annotations in [json!({}), json!({"management.cattle.io/cluster-id": ID})] {
            assert_eq!(why(&mine(), &with(annotations)), Some(Why::UnknownNamespace));
        }
        let mut own = with(json!({"drover.io/cluster-uid": "uid-1"}));
        assert_eq!(why(&mine(), &own), None);
        own.others.push(Arc::new(cluster("a", "x", "uid-0", "2026-01-01T00:00:00Z")));
        assert_eq!(why(&mine(), &own), None, "an older claim does not take it");
        let mut other = with(json!({"drover.io/cluster-uid": "uid-2"}));
        other.namespace_owner_exists = true;
        assert_eq!(why(&mine(), &other), Some(Why::OfAnotherCluster));
        let own = twin(json!({}), "demo", "team", None);
        let older = Evidence { namespace: namespace(json!({})), ..own };
        assert_eq!(why(&mine(), &older), None, "an older Drover made both");
    }

    #[test]
    fn only_a_namespace_that_was_made_for_the_cluster_is_deleted() {
        let (chosen, mut derived) = (mine(), mine());
        derived.annotations_mut().clear();
        let owns = |cluster: &Cluster, annotations: Value| {
            owns_namespace(cluster, &wanted(cluster, &[]), &namespace(annotations).unwrap())
        };
        assert!(owns(&chosen, json!({"drover.io/cluster-uid": "uid-1"})));
        assert!(!owns(&chosen, json!({"drover.io/cluster-uid": "uid-2"})));
        assert!(!owns(&chosen, json!({"management.cattle.io/cluster-id": ID})));
        assert!(owns(&derived, json!({})), "an older Drover made it");
        assert!(!owns(&derived, json!({"drover.io/cluster-uid": "uid-2"})));
    }

    #[test]
    fn a_status_of_another_writer_does_not_change_the_identity() {
        let mut cluster = mine();
        let twins: Vec<_> =
            twin(json!({"drover.io/cluster-uid": "uid-1"}), "demo", "team", None).twin.into_iter().collect();
        for id in ["kube-system", "c-m-zzzzzzzz"] {
            cluster.status = serde_json::from_value(json!({"clusterName": id})).unwrap();
            let identity = wanted(&cluster, &twins);
            assert_eq!((identity.id.as_str(), identity.source), (ID, Source::Twin));
            assert_eq!(wanted(&cluster, &[]).source, Source::Status);
        }
        let other =
            Evidence { twin_owner_exists: true, ..twin(json!({"drover.io/cluster-uid": "u"}), "", "", None) };
        let refusal = check(&cluster, &wanted(&cluster, &[]), &other).unwrap_err();
        assert!(refusal.clears_status(), "{refusal}");
    }
}
