//! Management ids and keys of Clusters.
//!
//! A `provisioning.cattle.io` Cluster notes the id of its management Cluster in `status.clusterName`. What a management
//! Cluster says of itself does not count: its workspace can be set by an annotation and then is not the namespace.

use std::sync::Arc;

use drover_api::names::management_cluster_name;
use drover_api::provisioning::v1::Cluster;
use drover_runtime::{Cache, ObjectKey};

const BY_ID: &str = "access/management-id";

/// The mapping between the two, over the Clusters there are. Clones share it.
#[derive(Clone)]
pub struct ManagementIds {
    clusters: Cache<Cluster>,
}

impl ManagementIds {
    pub fn new(clusters: Cache<Cluster>) -> Self {
        clusters.index(BY_ID, |cluster| cluster.management_id().map(str::to_owned).into_iter().collect());
        Self { clusters }
    }

    /// The management id of a Cluster, unless the id is another Cluster's.
    pub fn id_of(&self, key: &ObjectKey) -> Option<String> {
        let id = self.clusters.get(key)?.management_id()?.to_owned();
        (self.key_of(&id).as_ref() == Some(key)).then_some(id)
    }

    /// The Cluster of a management id.
    pub fn key_of(&self, id: &str) -> Option<ObjectKey> {
        self.cluster_of(id).map(|cluster| ObjectKey::of(cluster.as_ref()))
    }

    /// The same, with the object. `status` can be written by people, so several Clusters may claim one id: then it belongs
    /// to the one whose uid it was derived from, and to none if there is no such Cluster.
    pub fn cluster_of(&self, id: &str) -> Option<Arc<Cluster>> {
        let mut claims = self.clusters.by_index(BY_ID, id);
        if claims.len() > 1 {
            claims.retain(|cluster| {
                management_cluster_name(cluster.metadata.uid.as_deref().unwrap_or("")) == id
            });
        }
        claims.pop()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(namespace: &str, name: &str, uid: &str, id: &str) -> Cluster {
        serde_json::from_value(json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "spec": {}, "status": {"clusterName": id},
        }))
        .unwrap()
    }

    #[test]
    fn an_id_and_its_key_lead_to_each_other() {
        let id = management_cluster_name("1");
        let ids = ManagementIds::new(Cache::fixed([
            cluster("ns", "demo", "1", &id),
            cluster("ns", "new", "2", ""),
            cluster("other", "demo", "3", "c-m-chosen"),
        ]));
        let demo = ObjectKey::new("ns", "demo");
        assert_eq!((ids.id_of(&demo), ids.key_of(&id)), (Some(id), Some(demo)));
        assert_eq!(ids.key_of("c-m-chosen"), Some(ObjectKey::new("other", "demo")));
        assert_eq!(ids.id_of(&ObjectKey::new("ns", "new")), None);
        assert_eq!((ids.id_of(&ObjectKey::new("ns", "none")), ids.key_of("")), (None, None));
    }

    #[test]
    fn a_cluster_that_claims_the_id_of_another_does_not_get_it() {
        let id = management_cluster_name("1");
        let ids = ManagementIds::new(Cache::fixed([
            cluster("a", "thief", "2", &id),
            cluster("b", "demo", "1", &id),
            cluster("c", "one", "3", "c-m-chosen"),
            cluster("c", "two", "4", "c-m-chosen"),
        ]));
        assert_eq!(ids.key_of(&id), Some(ObjectKey::new("b", "demo")));
        assert_eq!(ids.id_of(&ObjectKey::new("a", "thief")), None);
        assert_eq!(ids.key_of("c-m-chosen"), None, "nothing says whose it is");
        assert_eq!(ids.id_of(&ObjectKey::new("c", "one")), None);
    }
}
