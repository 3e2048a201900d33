//! The fields that managers own, in caches: one string per manager. As a tree of maps, `fieldsV1` would be larger than
//! the rest of most objects, and every clone of an object would copy it.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::Value;

/// Replaces the tree of an entry by its JSON text.
pub(crate) fn fold(entry: &mut ManagedFieldsEntry) {
    if let Some(fields) = &mut entry.fields_v1
        && !fields.0.is_string()
    {
        fields.0 = Value::String(fields.0.to_string());
    }
}

/// The tree of an entry, of an object from a cache or from the API.
pub fn owned_fields(entry: &ManagedFieldsEntry) -> Option<Cow<'_, Value>> {
    match &entry.fields_v1.as_ref()?.0 {
        Value::String(text) => serde_json::from_str(text).ok().map(Cow::Owned),
        fields => Some(Cow::Borrowed(fields)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn folded_fields_are_the_same() {
        let tree =
            json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"k:{\"type\":\"A\"}": {".": {}}}});
        let mut entry: ManagedFieldsEntry =
            serde_json::from_value(json!({"manager": "m", "fieldsV1": tree})).unwrap();
        assert_eq!(owned_fields(&entry).as_deref(), Some(&tree));
        fold(&mut entry);
        assert!(entry.fields_v1.as_ref().unwrap().0.is_string());
        fold(&mut entry);
        assert_eq!(owned_fields(&entry).as_deref(), Some(&tree));
        assert_eq!(owned_fields(&ManagedFieldsEntry::default()), None);
    }
}
