//! The table of served resources and its atomic replacement.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;

use super::{ResourceDef, ScalePaths, Serve, SubresourceDef, Virtual};
use crate::http::Discovery;
use crate::object::object_mut;
use crate::status::{GroupName, Status};
use crate::storage::{Key, Version};
use crate::strategy::Strategy;

/// A served resource: definition and behaviour.
pub struct Resource {
    id: u64,
    api_version: String,
    opening: String,
    fields_id: u64,
    /// The definition.
    pub def: ResourceDef,
    /// The behaviour.
    pub strategy: Arc<dyn Strategy>,
    /// Set for resources that are never stored.
    pub virtual_resource: Option<Arc<dyn Virtual>>,
}

impl Resource {
    /// A stored resource.
    pub fn new(def: ResourceDef, strategy: Arc<dyn Strategy>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let api_version =
            if def.group.is_empty() { def.version.clone() } else { format!("{}/{}", def.group, def.version) };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        // Every object is encoded with its apiVersion first, so this prefix identifies the version of stored bytes.
        let opening = format!("{{\"apiVersion\":{:?},", api_version);
        let mut hasher = DefaultHasher::new();
        format!("{:?}", def.selectable_fields).hash(&mut hasher);
        let fields_id = hasher.finish();
        Self { id, api_version, opening, fields_id, def, strategy, virtual_resource: None }
    }

    /// A resource that is answered and never stored.
    pub fn unstored(def: ResourceDef, strategy: Arc<dyn Strategy>, answer: Arc<dyn Virtual>) -> Self {
        Self { virtual_resource: Some(answer), ..Self::new(def, strategy) }
    }

    /// Unique in the process; changes with every registration.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Equal for equal lists of selectable fields, so that a new registration can reuse computed values.
    pub(crate) fn fields_id(&self) -> u64 {
        self.fields_id
    }

    /// `apps/v1`.
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// `apiVersion` of stored objects.
    pub fn storage_api_version(&self) -> &str {
        if self.def.storage_api_version.is_empty() {
            &self.api_version
        } else {
            &self.def.storage_api_version
        }
    }

    /// Whether the stored bytes can be sent unchanged in this version.
    pub fn serves(&self, version: &Version) -> bool {
        self.strategy.serves_stored_bytes() && version.starts_with(self.opening.as_bytes())
    }

    /// Decodes a stored version and converts it to this version.
    pub async fn decode(&self, version: &Version) -> Result<Value, Status> {
        if self.serves(version) {
            return Ok(version.decode());
        }
        let mut converted = self.strategy.from_storage(vec![version.decode()]).await?;
        let mut object = converted.pop().ok_or_else(|| Status::internal("conversion returned nothing"))?;
        object_mut(&mut object).insert("apiVersion".into(), self.api_version.clone().into());
        Ok(object)
    }

    /// Group of the storage key.
    pub fn storage_group(&self) -> &str {
        self.def.storage_group.as_deref().unwrap_or(&self.def.group)
    }

    /// The storage key of an object.
    pub fn key(&self, namespace: &str, name: &str) -> Key {
        let namespace = if self.def.namespaced { namespace } else { "" };
        Key::new(self.storage_group(), &self.def.plural, namespace, name)
    }

    /// `deployments.apps`, for messages.
    pub fn group_resource(&self) -> GroupName<'_> {
        GroupName { group: &self.def.group, name: &self.def.plural }
    }

    /// `Deployment.apps`, for messages.
    pub fn group_kind(&self) -> GroupName<'_> {
        GroupName { group: &self.def.group, name: &self.def.kind }
    }

    /// Whether the resource itself supports the verb.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.def.verbs.contains(&verb)
    }

    /// A subresource by name.
    pub fn subresource(&self, name: &str) -> Option<&SubresourceDef> {
        self.def.subresources.iter().find(|sub| sub.name == name)
    }

    /// Whether `/status` is served.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// The paths of `/scale`, if served.
    pub fn scale(&self) -> Option<&ScalePaths> {
        match &self.subresource("scale")?.serve {
            Serve::Scale(paths) => Some(paths),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.api_version, self.def.plural)
    }
}

/// The versions of a group in order of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupVersions {
    /// Group, empty for core.
    pub group: String,
    /// Versions, preferred first.
    pub versions: Vec<String>,
}

/// The served resources at one time.
#[derive(Default)]
pub struct Snapshot {
    generation: u64,
    resources: BTreeMap<(String, String, String), Arc<Resource>>,
    kinds: HashMap<(String, String, String), Arc<Resource>>,
    pub(crate) discovery: OnceLock<Discovery>,
}

impl Snapshot {
    /// The number of changes; equal generations mean equal tables.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// A resource by group, version and plural.
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// A resource by group, version and kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.kinds.get(&(group.to_owned(), version.to_owned(), kind.to_owned()))
    }

    /// Any served version of a kind, the preferred one first (`metadata.ownerReferences` may refer to a version that is
    /// no longer served).
    pub fn any_version_of_kind(&self, group: &str, kind: &str) -> Option<&Arc<Resource>> {
        let of_group = self.groups().into_iter().find(|g| g.group == group)?;
        of_group.versions.iter().find_map(|version| self.kind(group, version, kind))
    }

    /// All resources, ordered by group, version, plural.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    /// One resource per stored (group, plural) in the preferred version: for controllers that visit every object once.
    pub fn stored(&self) -> Vec<Arc<Resource>> {
        let mut seen: HashMap<(String, String), Arc<Resource>> = HashMap::new();
        for group in self.groups() {
            for version in &group.versions {
                for resource in self.in_version(&group.group, version) {
                    if resource.virtual_resource.is_none() && resource.def.storage_group.is_none() {
                        let key = (group.group.clone(), resource.def.plural.clone());
                        seen.entry(key).or_insert_with(|| resource.clone());
                    }
                }
            }
        }
        let mut all: Vec<_> = seen.into_values().collect();
        all.sort_by(|a, b| (&a.def.group, &a.def.plural).cmp(&(&b.def.group, &b.def.plural)));
        all
    }

    /// The resources of one group and version, by plural.
    pub fn in_version(&self, group: &str, version: &str) -> impl Iterator<Item = &Arc<Resource>> {
        let from = (group.to_owned(), version.to_owned(), String::new());
        let (group, version) = (group.to_owned(), version.to_owned());
        self.resources
            .range(from..)
            .take_while(move |(key, _)| key.0 == group && key.1 == version)
            .map(|(_, resource)| resource)
    }

    /// Groups by priority, then name; versions in order of preference.
    pub fn groups(&self) -> Vec<GroupVersions> {
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (group, version, _) in self.resources.keys() {
            let versions = groups.entry(group).or_default();
            if !versions.contains(version) {
                versions.push(version.clone());
            }
        }
        let mut groups: Vec<GroupVersions> = groups
            .into_iter()
            .map(|(group, mut versions)| {
                versions.sort_by(|a, b| version_order(a, b));
                GroupVersions { group: group.to_owned(), versions }
            })
            .collect();
        groups.sort_by(|a, b| {
            group_priority(&b.group).cmp(&group_priority(&a.group)).then_with(|| a.group.cmp(&b.group))
        });
        groups
    }
}

/// The served resources, changed atomically.
pub struct ResourceTable {
    current: RwLock<Arc<Snapshot>>,
    generation: watch::Sender<u64>,
}

impl ResourceTable {
    /// A table of these resources.
    pub fn new(resources: impl IntoIterator<Item = Resource>) -> Self {
        let table =
            Self { current: RwLock::new(Arc::new(Snapshot::default())), generation: watch::Sender::new(0) };
        table.change(|editor| resources.into_iter().for_each(|resource| editor.insert(resource)));
        table
    }

    /// The current resources.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.read().clone()
    }

    /// A resource by group, version and plural.
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.current.read().resource(group, version, plural).cloned()
    }

    /// Applies several changes atomically.
    pub fn change<T>(&self, change: impl FnOnce(&mut Editor) -> T) -> T {
        let mut current = self.current.write();
        let mut editor = Editor { resources: current.resources.clone() };
        let result = change(&mut editor);
        let kinds = editor.resources.values().map(|resource| {
            let def = &resource.def;
            ((def.group.clone(), def.version.clone(), def.kind.clone()), resource.clone())
        });
        let generation = current.generation + 1;
        let kinds = kinds.collect();
        *current =
            Arc::new(Snapshot { generation, kinds, resources: editor.resources, discovery: OnceLock::new() });
        drop(current);
        self.generation.send_replace(generation);
        result
    }

    /// Notifies about every change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

/// Changes that are applied together.
pub struct Editor {
    resources: BTreeMap<(String, String, String), Arc<Resource>>,
}

impl Editor {
    /// Serves a resource; replaces one with the same group, version and plural.
    pub fn insert(&mut self, resource: Resource) {
        let def = &resource.def;
        let key = (def.group.clone(), def.version.clone(), def.plural.clone());
        self.resources.insert(key, Arc::new(resource));
    }

    /// Stops serving a resource.
    pub fn remove(&mut self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.resources.remove(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// Stops serving all versions of a resource.
    pub fn remove_all(&mut self, group: &str, plural: &str) {
        self.resources.retain(|key, _| key.0 != group || key.2 != plural);
    }
}

/// `groupPriorityMinimum` of the aggregator: built-in groups first, CRD groups 1000.
pub(crate) fn group_priority(group: &str) -> u32 {
    match group {
        "" => 18_000,
        "apps" => 17_800,
        "events.k8s.io" => 17_750,
        "authentication.k8s.io" => 17_700,
        "authorization.k8s.io" => 17_600,
        "autoscaling" => 17_500,
        "batch" => 17_400,
        "certificates.k8s.io" => 17_300,
        "networking.k8s.io" => 17_200,
        "policy" => 17_100,
        "rbac.authorization.k8s.io" => 17_000,
        "storage.k8s.io" => 16_800,
        "admissionregistration.k8s.io" => 16_700,
        "apiextensions.k8s.io" => 16_700,
        "scheduling.k8s.io" => 16_600,
        "coordination.k8s.io" => 16_500,
        "node.k8s.io" => 16_300,
        "discovery.k8s.io" => 16_200,
        "apiregistration.k8s.io" => 20_000,
        _ => 1_000,
    }
}

/// Kubernetes' order of versions: GA before beta before alpha, higher numbers first, others last by name.
pub fn version_order(a: &str, b: &str) -> std::cmp::Ordering {
    fn rank(version: &str) -> Option<(u8, u64, u64)> {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..digits].parse().ok()?;
        let rest = &rest[digits..];
        if rest.is_empty() {
            return Some((2, major, 0));
        }
        let (level, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
            (Some(minor), _) => (1, minor),
            (_, Some(minor)) => (0, minor),
            _ => return None,
        };
        let minor = if minor.is_empty() { 0 } else { minor.parse().ok()? };
        Some((level, major, minor))
    }
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::version_order;

    #[test]
    fn versions_are_ordered_as_kubernetes_does() {
        let mut versions = vec![
            "foo10",
            "v1alpha1",
            "v2",
            "v11beta2",
            "v10",
            "v1",
            "v11alpha2",
            "foo1",
            "v10beta3",
            "v3beta1",
        ];
        versions.sort_by(|a, b| version_order(a, b));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v11alpha2", "v1alpha1", "foo1", "foo10"]
        );
    }
}
