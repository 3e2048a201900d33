//! An immutable version of an object: encoded once, and shared by store, reads and watchers.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;

use super::{Encoded, cold};

/// The location of an object: `<group>/<resource>/<namespace>/<name>`, where the group (core) and the namespace
/// (cluster-scoped) may be empty. Ordered by bytes, so the objects of a resource, and of a namespace in it, form one
/// range.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// The key of an object.
    pub fn new(group: &str, resource: &str, namespace: &str, name: &str) -> Self {
        Self(format!("{group}/{resource}/{namespace}/{name}").into())
    }

    /// Parses the text form.
    pub fn parse(text: &str) -> Option<Self> {
        (text.splitn(4, '/').count() == 4).then(|| Self(text.into()))
    }

    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `<group>/<resource>`, the unit of watching.
    pub fn topic(&self) -> &str {
        let mut slashes = self.0.match_indices('/');
        slashes.next();
        slashes.next().map_or(&*self.0, |(at, _)| &self.0[..at])
    }

    /// API group.
    pub fn group(&self) -> &str {
        self.part(0)
    }

    /// Plural resource.
    pub fn resource(&self) -> &str {
        self.part(1)
    }

    /// Namespace or empty.
    pub fn namespace(&self) -> &str {
        self.part(2)
    }

    /// Object name.
    pub fn name(&self) -> &str {
        self.part(3)
    }

    fn part(&self, n: usize) -> &str {
        self.0.splitn(4, '/').nth(n).unwrap_or_default()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A version of an object.
pub struct Version {
    key: Key,
    revision: u64,
    created: u64,
    hole: u32,
    length: u32,
    body: RwLock<Body>,
    meta: OnceLock<Meta>,
    fields: OnceLock<(u64, Box<[Box<str>]>)>,
    partial: OnceLock<Bytes>,
}

enum Body {
    Plain(Bytes),
    Compressed(Box<[u8]>),
}

/// The metadata for selectors, garbage collection and metadata-only readers, decoded at most once per version.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// Name.
    pub name: Box<str>,
    /// Namespace or empty.
    pub namespace: Box<str>,
    /// UID.
    pub uid: Box<str>,
    /// Labels, sorted by key.
    #[serde(deserialize_with = "sorted_pairs")]
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Owners.
    #[serde(deserialize_with = "nullable")]
    pub owner_references: Box<[OwnerRef]>,
    /// Finalizers.
    #[serde(deserialize_with = "nullable")]
    pub finalizers: Box<[Box<str>]>,
    /// Whether deletion has started.
    pub deletion_timestamp: Option<Box<str>>,
    /// When the object was created.
    pub creation_timestamp: Option<Box<str>>,
}

/// `metav1.OwnerReference`.
#[derive(Debug, Default, Clone, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerRef {
    /// Group and version of the owner.
    pub api_version: Box<str>,
    /// Kind of the owner.
    pub kind: Box<str>,
    /// Name of the owner.
    pub name: Box<str>,
    /// UID of the owner.
    pub uid: Box<str>,
    /// Whether this is the managing controller.
    pub controller: Option<bool>,
    /// Whether foreground deletion of the owner waits for this object.
    pub block_owner_deletion: Option<bool>,
}

impl Meta {
    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
        Some(&self.labels[at].1)
    }
}

fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

type Pairs = Box<[(Box<str>, Box<str>)]>;

fn sorted_pairs<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
    let map = Option::<std::collections::BTreeMap<Box<str>, Box<str>>>::deserialize(deserializer)?;
    Ok(map.unwrap_or_default().into_iter().collect())
}

#[derive(Deserialize)]
struct OnlyMeta {
    #[serde(default)]
    metadata: Meta,
}

impl Version {
    /// Creates a version in the writer: inserts the digits of `revision` into the hole.
    pub fn splice(key: Key, revision: u64, created: u64, encoded: &Encoded) -> Self {
        let bytes = put_digits(&encoded.json, encoded.hole as usize, 0, revision);
        Self::stored(key, revision, created, bytes, encoded.hole)
    }

    /// Creates a version from stored bytes, in which the revision is already inserted.
    pub fn stored(key: Key, revision: u64, created: u64, bytes: Bytes, hole: u32) -> Self {
        Self {
            key,
            revision,
            created,
            hole,
            length: bytes.len() as u32,
            body: RwLock::new(Body::Plain(bytes)),
            meta: OnceLock::new(),
            fields: OnceLock::new(),
            partial: OnceLock::new(),
        }
    }

    /// The same content with another revision (for a removal, or an object that a selector no longer matches).
    pub fn at_revision(&self, revision: u64) -> Self {
        let old_digits = decimal_len(self.revision);
        let bytes = put_digits(&self.bytes(), self.hole as usize, old_digits, revision);
        let copy = Self::stored(self.key.clone(), revision, self.created, bytes, self.hole);
        if let Some(fields) = self.fields.get() {
            let _ = copy.fields.set(fields.clone());
        }
        copy
    }

    /// The location.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Its resourceVersion; 0 for an object that was never stored (dry run).
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Revision of the first version of this object.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// The JSON; shared unless it has to be decompressed.
    pub fn bytes(&self) -> Bytes {
        match &*self.body.read() {
            Body::Plain(bytes) => bytes.clone(),
            Body::Compressed(packed) => cold::unpack(packed, self.len()),
        }
    }

    /// Length of the JSON.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether the JSON starts with these bytes.
    pub fn starts_with(&self, bytes: &[u8]) -> bool {
        match &*self.body.read() {
            Body::Plain(body) => body.starts_with(bytes),
            Body::Compressed(packed) => cold::starts_with(packed, bytes),
        }
    }

    /// Compresses the JSON in memory, if that saves much.
    pub(super) fn compress(&self, packer: &mut cold::Packer) {
        // The lock is not held during compression, so that reads are not delayed. No other thread modifies the body.
        let bytes = self.bytes();
        if let Some(packed) = packer.pack(&bytes) {
            *self.body.write() = Body::Compressed(packed);
        }
    }

    #[cfg(test)]
    pub(super) fn is_compressed(&self) -> bool {
        matches!(*self.body.read(), Body::Compressed(_))
    }

    /// Offset of the digits of `resourceVersion` in the JSON.
    pub fn hole(&self) -> u32 {
        self.hole
    }

    /// Decodes the whole object.
    pub fn decode(&self) -> Value {
        // Stored bytes were written by this server; if the disk corrupted them, the object is returned as empty instead
        // of a panic.
        serde_json::from_slice(&self.bytes()).unwrap_or_else(|error| {
            tracing::error!(key = %self.key, %error, "failed to decode stored object");
            Value::Object(serde_json::Map::new())
        })
    }

    /// The metadata that selectors and owners need.
    pub fn meta(&self) -> &Meta {
        self.meta.get_or_init(|| match serde_json::from_slice::<OnlyMeta>(&self.bytes()) {
            Ok(only) => only.metadata,
            Err(error) => {
                tracing::error!(key = %self.key, %error, "failed to decode the metadata of a stored object");
                Meta::default()
            }
        })
    }

    /// The values of selectable fields, computed once for the definition with id `of`.
    pub fn fields(&self, of: u64, compute: impl FnOnce(&Value) -> Box<[Box<str>]>) -> Box<[Box<str>]> {
        if let Some((id, values)) = self.fields.get() {
            if *id == of {
                return values.clone();
            }
            return compute(&self.decode());
        }
        let values = compute(&self.decode());
        let _ = self.fields.set((of, values.clone()));
        values
    }

    /// The bytes as `PartialObjectMetadata`, computed once.
    pub fn partial(&self, make: impl FnOnce(&Value) -> Bytes) -> &Bytes {
        self.partial.get_or_init(|| make(&self.decode()))
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key, self.revision)
    }
}

fn decimal_len(n: u64) -> usize {
    n.checked_ilog10().map_or(1, |digits| digits as usize + 1)
}

fn put_digits(bytes: &[u8], hole: usize, old_digits: usize, revision: u64) -> Bytes {
    let digits = revision.to_string();
    let mut out = BytesMut::with_capacity(bytes.len() - old_digits + digits.len());
    out.extend_from_slice(&bytes[..hole]);
    out.extend_from_slice(digits.as_bytes());
    out.extend_from_slice(&bytes[hole + old_digits..]);
    out.freeze()
}

impl Key {
    /// A bound for ranges; it need not be the key of an object.
    pub(super) fn raw(text: &str) -> Self {
        Self(text.into())
    }
}
