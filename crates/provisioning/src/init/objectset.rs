//! Marks by which generated objects are found again, the same as wrangler's apply puts on them.

use serde_json::{Value, json};
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
    pub fn mark(&self, object: &mut Value) {
        object["metadata"]["labels"][labels::OBJECTSET_HASH] = json!(self.hash());
        for (key, value) in [
            (annotations::OBJECTSET_ID, self.id),
            (annotations::OBJECTSET_OWNER_GVK, self.owner_gvk),
            (annotations::OBJECTSET_OWNER_NAME, &self.owner_name),
            (annotations::OBJECTSET_OWNER_NAMESPACE, &self.owner_namespace),
        ] {
            object["metadata"]["annotations"][key] = json!(value);
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
        let mut object = json!({"metadata": {"name": "x"}});
        set.mark(&mut object);
        assert_eq!(object["metadata"]["labels"]["objectset.rio.cattle.io/hash"], json!(set.hash()));
        assert_eq!(object["metadata"]["annotations"]["objectset.rio.cattle.io/owner-name"], "demo");
    }
}
