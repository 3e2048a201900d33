//! The objects of one cluster, read once from the API for `describe` and `why`.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use anyhow::Context;
use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment, MachineSet};
use drover_api::labels::capi::CLUSTER_NAME;
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use drover_api::wait::{Wait, WaitObject};
use drover_runtime::error::found;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::Value;

/// Limit for all requests about one cluster together.
const LIMIT: Duration = Duration::from_secs(30);
/// How many warnings are read at most.
const MOST_WARNINGS: u32 = 1000;
/// Label of a Job's Pods.
pub(crate) const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// A condition in the format of Rancher or of Cluster API.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
}

/// Identifies an object. The group is needed because two kinds are called Cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(group: &str, kind: &str, name: &str) -> Self {
        Self { group: group.to_owned(), kind: kind.to_owned(), name: name.to_owned() }
    }

    /// The key of a typed object.
    pub(crate) fn of<K: Resource<DynamicType = ()>>(name: &str) -> Self {
        Self::new(&K::group(&()), &K::kind(&()), name)
    }
}

/// One object.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) object: DynamicObject,
}

impl Item {
    pub(crate) fn reference(&self) -> WaitObject {
        WaitObject::new(&self.key.kind, self.object.namespace().unwrap_or_default(), &self.key.name)
    }

    pub(crate) fn is<K: Resource<DynamicType = ()>>(&self) -> bool {
        self.key.group == K::group(&()) && self.key.kind == K::kind(&())
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    pub(crate) fn text(&self, pointer: &str) -> Option<&str> {
        self.object.data.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.object.labels().get(key).map(String::as_str)
    }

    /// Prefers the v1beta2 conditions where an object has both.
    pub(crate) fn conditions(&self) -> Vec<Condition> {
        let status = &self.object.data["status"];
        let list = status.pointer("/v1beta2/conditions").unwrap_or(&status["conditions"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let read = |condition: &Value| Condition {
            type_: text(&condition["type"]),
            status: text(&condition["status"]),
            reason: text(&condition["reason"]),
            message: text(&condition["message"]),
            since: condition["lastTransitionTime"].as_str().and_then(|time| time.parse().ok()),
        };
        list.as_array().map(|list| list.iter().map(read).collect()).unwrap_or_default()
    }

    pub(crate) fn condition(&self, type_: &str) -> Option<Condition> {
        self.conditions().into_iter().find(|condition| condition.type_ == type_)
    }

    pub(crate) fn waits(&self) -> Vec<Wait> {
        serde_json::from_value(self.object.data["status"]["waits"].clone()).unwrap_or_default()
    }

    /// The object that a Cluster API reference `{apiGroup, kind, name}` points to.
    pub(crate) fn refers(&self, pointer: &str) -> Option<Key> {
        let reference = self.object.data.pointer(pointer)?;
        let text = |key: &str| reference[key].as_str().filter(|text| !text.is_empty());
        Some(Key::new(text("apiGroup")?, text("kind")?, text("name")?))
    }

    /// The cluster that the object belongs to.
    pub(crate) fn cluster(&self) -> Option<&str> {
        self.text("/spec/clusterName").or_else(|| self.label(CLUSTER_NAME))
    }
}

/// A warning about an object that may no longer exist.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Warning {
    pub(crate) key: Key,
    pub(crate) object: WaitObject,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) at: Option<Timestamp>,
}

impl Warning {
    fn of(event: &DynamicObject) -> Option<Self> {
        let text = |pointer: &str| event.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("/involvedObject/kind"), text("/involvedObject/name"));
        let group = text("/involvedObject/apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
        let times = ["/lastTimestamp", "/eventTime", "/firstTimestamp"];
        (!name.is_empty()).then(|| Self {
            key: Key::new(group, kind, name),
            object: WaitObject::new(kind, text("/involvedObject/namespace"), name),
            reason: text("/reason").to_owned(),
            message: text("/message").to_owned(),
            at: times.iter().find_map(|time| text(time).parse().ok()),
        })
    }
}

/// The objects of one cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Family {
    pub(crate) items: Vec<Item>,
    /// The recent warnings of the namespace, if they were read.
    pub(crate) warnings: Vec<Warning>,
}

impl Family {
    pub(crate) fn get(&self, key: &Key) -> Option<&Item> {
        self.items.iter().find(|item| item.key == *key)
    }

    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.is::<K>())
    }

    fn extend(&mut self, resource: &ApiResource, objects: impl IntoIterator<Item = DynamicObject>) {
        for object in objects {
            let key = Key::new(&resource.group, &resource.kind, &object.name_any());
            if self.get(&key).is_none() {
                self.items.push(Item { key, object });
            }
        }
    }
}

/// Reads objects of a namespace.
pub(crate) struct Fetch<'a> {
    client: &'a Client,
    namespace: &'a str,
    /// API groups by name, discovered on first use.
    groups: HashMap<String, Option<kube::discovery::ApiGroup>>,
}

impl<'a> Fetch<'a> {
    pub(crate) fn new(client: &'a Client, namespace: &'a str) -> Self {
        Self { client, namespace, groups: HashMap::new() }
    }

    /// Everything that belongs to `cluster`. Objects that do not exist and kinds that are not served are left out.
    pub(crate) async fn family(&mut self, cluster: &str) -> anyhow::Result<Family> {
        let gathered = tokio::time::timeout(LIMIT, self.gather(cluster)).await;
        gathered.with_context(|| format!("timed out reading the objects of cluster {cluster}"))?
    }

    async fn gather(&mut self, cluster: &str) -> anyhow::Result<Family> {
        let mut family = Family::default();
        for resource in [erased::<Cluster>(), erased::<CapiCluster>(), erased::<RKEControlPlane>()] {
            family.extend(&resource, self.get(&resource, cluster).await?);
        }
        let mine = ListParams::default().labels(&format!("{CLUSTER_NAME}={cluster}"));
        for resource in [erased::<MachineDeployment>(), erased::<MachineSet>(), erased::<Machine>()] {
            family.extend(&resource, self.list(&resource, &mine).await?);
        }
        let pointers = ["/spec/infrastructureRef", "/spec/controlPlaneRef", "/spec/bootstrap/configRef"];
        let referred: Vec<Key> = family
            .items
            .iter()
            .flat_map(|item| pointers.iter().filter_map(|pointer| item.refers(pointer)))
            .collect();
        let kinds: BTreeSet<(String, String)> =
            referred.iter().map(|key| (key.group.clone(), key.kind.clone())).collect();
        for (group, kind) in kinds {
            let Some(resource) = self.resource(&group, &kind).await? else { continue };
            family.extend(&resource, self.list(&resource, &mine).await?);
            // Objects that their controller has not labelled yet.
            for key in referred.iter().filter(|key| key.group == group && key.kind == kind) {
                if family.get(key).is_none() {
                    family.extend(&resource, self.get(&resource, &key.name).await?);
                }
            }
        }
        let jobs: Vec<String> =
            family.items.iter().filter_map(|item| item.text("/status/jobName").map(str::to_owned)).collect();
        self.jobs(&jobs, &mut family).await?;
        Ok(family)
    }

    /// Reads Jobs that are not complete, with their Pods.
    pub(crate) async fn jobs(&mut self, names: &[String], family: &mut Family) -> anyhow::Result<()> {
        let (job, pod) = (erased::<Job>(), erased::<Pod>());
        // One list instead of a request for each machine.
        let listed = match names {
            [] => return Ok(()),
            [name] => self.get(&job, name).await?.into_iter().collect(),
            _ => self.list(&job, &ListParams::default()).await?,
        };
        let mine = listed.into_iter().filter(|job| names.contains(&job.name_any()));
        family.extend(&job, mine);
        let open: Vec<String> = family
            .all::<Job>()
            .filter(|job| job.condition("Complete").is_none())
            .map(|job| job.key.name.clone())
            .collect();
        for name in open {
            let pods = ListParams::default().labels(&format!("{JOB_NAME}={name}"));
            family.extend(&pod, self.list(&pod, &pods).await?);
        }
        Ok(())
    }

    /// The recent warnings of the namespace; none if the user may not read events.
    pub(crate) async fn warnings(&self) -> anyhow::Result<Vec<Warning>> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), self.namespace, &erased::<Event>());
        let params = ListParams::default().fields("type=Warning").limit(MOST_WARNINGS);
        let listed = tokio::time::timeout(LIMIT, api.list(&params)).await;
        match listed.context("timed out reading events")? {
            Ok(list) => Ok(list.items.iter().filter_map(Warning::of).collect()),
            Err(kube::Error::Api(_)) => Ok(vec![]),
            Err(error) => Err(error).context("failed to list events"),
        }
    }

    pub(crate) async fn get(
        &self,
        resource: &ApiResource,
        name: &str,
    ) -> anyhow::Result<Option<DynamicObject>> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), self.namespace, resource);
        let got = found(api.get(name).await);
        got.with_context(|| format!("failed to read {} {}/{name}", resource.kind, self.namespace))
    }

    pub(crate) async fn list(
        &self,
        resource: &ApiResource,
        params: &ListParams,
    ) -> anyhow::Result<Vec<DynamicObject>> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), self.namespace, resource);
        let listed = found(api.list(params).await);
        let listed = listed.with_context(|| format!("failed to list {}", resource.plural))?;
        Ok(listed.map(|list| list.items).unwrap_or_default())
    }

    async fn resource(&mut self, group: &str, kind: &str) -> anyhow::Result<Option<ApiResource>> {
        if !self.groups.contains_key(group) {
            // An unserved group is cached as well.
            let found = match kube::discovery::group(self.client, group).await {
                Ok(found) => Some(found),
                Err(kube::Error::Api(_) | kube::Error::Discovery(_)) => None,
                Err(error) => return Err(error).with_context(|| format!("failed to discover {group}")),
            };
            self.groups.insert(group.to_owned(), found);
        }
        let known = self.groups.get(group).and_then(Option::as_ref);
        Ok(known.and_then(|group| group.recommended_kind(kind)).map(|(resource, _)| resource))
    }
}

/// The API resource of a typed kind.
pub(crate) fn erased<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}
