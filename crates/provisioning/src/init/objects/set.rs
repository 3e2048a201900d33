//! Marks by which generated objects are found again, the same as wrangler's apply puts on them.

use kube::api::ObjectMeta;
use sha1::{Digest, Sha1};

use crate::keys::{annotations, labels};

/// One owner's set of generated objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSet {
    pub id: &'static str,
    pub owner_gvk: &'static str,
    pub owner_namespace: String,
    pub owner_name: String,
}

impl ObjectSet {
    /// The objects generated from a provisioning Cluster.
    pub fn cluster(namespace: &str, name: &str) -> Self {
        Self {
            id: "rke-cluster",
            owner_gvk: "provisioning.cattle.io/v1, Kind=Cluster",
            owner_namespace: namespace.to_owned(),
            owner_name: name.to_owned(),
        }
    }

    /// Value of the label that all objects of the set carry.
    pub fn hash(&self) -> String {
        let mut hasher = Sha1::new();
        for part in [self.id, self.owner_gvk, &self.owner_name, &self.owner_namespace] {
            hasher.update(part.as_bytes());
        }
        hex::encode(hasher.finalize())
    }

    /// Marks an object as a member.
    pub fn mark(&self, meta: &mut ObjectMeta) {
        meta.labels.get_or_insert_default().insert(labels::OBJECTSET_HASH.to_owned(), self.hash());
        let notes = meta.annotations.get_or_insert_default();
        for (key, value) in [
            (annotations::OBJECTSET_ID, self.id),
            (annotations::OBJECTSET_OWNER_GVK, self.owner_gvk),
            (annotations::OBJECTSET_OWNER_NAME, &self.owner_name),
            (annotations::OBJECTSET_OWNER_NAMESPACE, &self.owner_namespace),
        ] {
            notes.insert(key.to_owned(), value.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_over_the_joined_parts() {
        let set = ObjectSet::cluster("fleet-default", "demo");
        let text = "rke-clusterprovisioning.cattle.io/v1, Kind=Clusterdemofleet-default";
        assert_eq!(set.hash(), hex::encode(Sha1::digest(text.as_bytes())));
        let mut meta = ObjectMeta::default();
        set.mark(&mut meta);
        assert_eq!(meta.labels.unwrap()["objectset.rio.cattle.io/hash"], set.hash());
        assert_eq!(meta.annotations.unwrap()["objectset.rio.cattle.io/owner-name"], "demo");
    }
}
