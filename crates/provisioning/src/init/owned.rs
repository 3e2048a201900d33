//! Metadata that the controllers of generated objects would add in writes of their own: the owner, its label and the
//! finalizer. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use crate::keys::labels;

/// The Cluster of Cluster API owns the object, as Cluster API's contract has it.
pub fn own(meta: &mut ObjectMeta, owner: Option<&OwnerReference>) {
    let Some(owner) = owner else { return };
    let labels = meta.labels.get_or_insert_default();
    labels.insert(labels::capi::CLUSTER_NAME.to_owned(), owner.name.clone());
    meta.owner_references.get_or_insert_default().push(owner.clone());
}

/// A new object has the finalizer from the beginning. One without it keeps none: its controller has removed it.
pub fn with_finalizer(meta: &mut ObjectMeta, live: Option<&ObjectMeta>, finalizer: &str) {
    let present = |live: &ObjectMeta| live.finalizers.iter().flatten().any(|there| there == finalizer);
    if live.is_none_or(present) {
        meta.finalizers.get_or_insert_default().push(finalizer.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_finalizer_does_not_come_back() {
        let with = |live: Option<&ObjectMeta>| {
            let mut meta = ObjectMeta::default();
            with_finalizer(&mut meta, live, "a");
            meta
        };
        let new = with(None);
        assert_eq!(new.finalizers.as_deref(), Some(&["a".to_owned()][..]));
        assert_eq!(with(Some(&new)), new);
        assert_eq!(with(Some(&ObjectMeta::default())).finalizers, None);
    }
}
