//! Events (core/v1), as `kubectl describe` shows them.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::sync::Arc;

use crate::Clock;

/// Records what a controller did and why.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    clock: Arc<dyn Clock>,
    component: &'static str,
}

impl Recorder {
    pub fn new(client: Client, clock: Arc<dyn Clock>, component: &'static str) -> Self {
        Self { client, clock, component }
    }

    /// Something went as it should.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, object: &K, reason: &str, message: &str) {
        self.record(object.object_ref(&()), "Normal", reason, message).await;
    }

    /// Something a person may have to look at.
    pub async fn warning<K: Resource<DynamicType = ()>>(&self, object: &K, reason: &str, message: &str) {
        self.record(object.object_ref(&()), "Warning", reason, message).await;
    }

    /// Records for any object. The same reason and message again only raises the count.
    ///
    /// Events are a courtesy: a failure to write one is logged, never returned.
    pub async fn record(&self, object: ObjectReference, type_: &str, reason: &str, message: &str) {
        let namespace = object.namespace.clone().unwrap_or_else(|| "default".into());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let name = event_name(&object, reason, message);
        let now = Time(crate::conditions::whole_seconds(self.clock.now()));
        if let Err(error) = self.write(&api, &name, &namespace, object, type_, reason, message, now).await {
            tracing::debug!(%error, %name, reason, "event not recorded");
        }
    }

    #[allow(clippy::too_many_arguments)]
    async fn write(
        &self,
        api: &Api<Event>,
        name: &str,
        namespace: &str,
        object: ObjectReference,
        type_: &str,
        reason: &str,
        message: &str,
        now: Time,
    ) -> Result<(), kube::Error> {
        if let Some(old) = api.get_opt(name).await? {
            let again = json!({"count": old.count.unwrap_or(1).saturating_add(1), "lastTimestamp": now});
            api.patch(name, &PatchParams::default(), &Patch::Merge(again)).await?;
            return Ok(());
        }
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            involved_object: object,
            type_: Some(type_.into()),
            reason: Some(reason.into()),
            message: Some(message.into()),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(EventSource { component: Some(self.component.into()), host: None }),
            reporting_component: Some(self.component.into()),
            ..Event::default()
        };
        api.create(&PostParams::default(), &event).await.map(|_| ())
    }
}

/// The same event of the same object has the same name, also after a restart.
fn event_name(object: &ObjectReference, reason: &str, message: &str) -> String {
    let mut hash = Sha256::new();
    for part in [object.uid.as_deref().unwrap_or_default(), reason, message] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let suffix: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = object.name.as_deref().unwrap_or("object");
    format!("{}.{suffix}", &name[..name.len().min(200)])
}
