//! An infra machine read from the API, and the progress that is kept in its status.

use drover_api::rke::v1::GenericCondition;
use drover_api::wait::{Wait, WaitObject};
use jiff::Timestamp;
use serde_json::Value;

use crate::conditions::{self as generic, FALSE, TRUE};
use crate::keys::{annotations, conditions};

/// An infra machine of any driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    pub namespace: String,
    pub name: String,
    pub kind: String,
    pub deleting: bool,
    pub has_finalizer: bool,
    pub force_remove: bool,
    pub provider_id: String,
    /// The CAPI Machine it was made for, as noted in a label: it may be gone.
    pub capi_machine: String,
    /// Annotation with the longest hostname, as it was written.
    pub hostname_limit: String,
    /// Name of the cloud credential; empty for none.
    pub credential: String,
    pub created: Option<Timestamp>,
    pub progress: Progress,
    pub conditions: Vec<GenericCondition>,
    pub waits: Vec<Wait>,
}

/// What happened so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Number of the last attempt; 0 before the first.
    pub attempt: i64,
    /// Condition `CreateJob`: none unless it ended.
    pub created: Option<bool>,
    /// Condition `DeleteJob`: none unless it ended.
    pub removed: Option<bool>,
    pub failure: Option<(String, String)>,
    pub failed_at: Option<Timestamp>,
    pub driver_url: String,
    pub driver_hash: String,
    /// Whether the Job that runs removes the server; not kept.
    pub(super) running: Option<bool>,
    /// What the Job that runs does; not kept.
    pub(super) message: String,
}

impl Machine {
    /// Reads the object. Never fails: what is not there is empty.
    pub fn read(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &object["metadata"];
        let status = &object["status"];
        let list: Vec<GenericCondition> =
            serde_json::from_value(status["conditions"].clone()).unwrap_or_default();
        let ended = |type_: &str| match generic::get(&list, type_).map(|c| c.status.as_str()) {
            Some(TRUE) => Some(true),
            Some(FALSE) => Some(false),
            _ => None,
        };
        let failure = status["failureReason"]
            .as_str()
            .map(|reason| (reason.to_owned(), text(&status["failureMessage"])));
        let attempt = status["attempt"].as_i64().unwrap_or_else(|| {
            // A machine made by the original has conditions, but no attempts.
            i64::from(generic::get(&list, conditions::CREATE_JOB).is_some())
        });
        let progress = Progress {
            attempt,
            created: ended(conditions::CREATE_JOB),
            removed: ended(conditions::DELETE_JOB),
            failure,
            failed_at: status["failedAt"].as_str().and_then(|text| text.parse().ok()),
            driver_url: text(&status["driverUrl"]),
            driver_hash: text(&status["driverHash"]),
            ..Progress::default()
        };
        let finalizers = meta["finalizers"].as_array().cloned().unwrap_or_default();
        Self {
            namespace: text(&meta["namespace"]),
            name: text(&meta["name"]),
            kind: text(&object["kind"]),
            deleting: meta["deletionTimestamp"].is_string(),
            has_finalizer: finalizers.iter().any(|f| f == drover_api::finalizers::cattle::MACHINE_PROVISION),
            force_remove: meta["annotations"][annotations::FORCE_MACHINE_REMOVE] == "true",
            provider_id: text(&object["spec"]["providerID"]),
            capi_machine: text(&meta["labels"][crate::keys::labels::CAPI_MACHINE_NAME]),
            hostname_limit: text(&meta["annotations"][annotations::HOSTNAME_LENGTH_LIMIT]),
            credential: credential_name(object),
            created: meta["creationTimestamp"].as_str().and_then(|text| text.parse().ok()),
            progress,
            conditions: list,
            waits: serde_json::from_value(status["waits"].clone()).unwrap_or_default(),
        }
    }

    /// Whether it has the finalizer and the label with the name of its Machine.
    pub fn is_adopted(&self) -> bool {
        self.has_finalizer && !self.capi_machine.is_empty()
    }

    /// How conditions and waits name it.
    pub fn reference(&self) -> WaitObject {
        WaitObject::new(&self.kind, &self.namespace, &self.name)
    }

    /// `[ns/name] of kind (K) for machine M`.
    pub fn describe(&self) -> String {
        format!(
            "[{}/{}] of kind ({}) for machine {}",
            self.namespace, self.name, self.kind, self.capi_machine
        )
    }
}

fn credential_name(object: &Value) -> String {
    let from = |value: &Value| value.as_str().filter(|name| !name.is_empty()).map(str::to_owned);
    from(&object["spec"]["common"]["cloudCredentialSecretName"])
        .or_else(|| from(&object["status"]["cloudCredentialSecretName"]))
        .unwrap_or_default()
}

impl Progress {
    /// A Job runs.
    pub(super) fn start(&mut self, machine: &Machine, remove: bool) {
        let doing = if remove { "deleting" } else { "creating" };
        self.running = Some(remove);
        self.message = format!("{doing} server {} in infrastructure provider", machine.describe());
        if remove {
            self.removed = None;
            self.failure = self.failure.take().filter(|(reason, _)| reason != "CreateError");
        }
    }

    /// A Job failed.
    pub(super) fn fail(
        &mut self,
        machine: &Machine,
        remove: bool,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) {
        let doing = if remove { "deleting" } else { "creating" };
        let text = format!(
            "failed {doing} server {} in infrastructure provider: {reason}: {message}",
            machine.describe()
        );
        let error = if remove { "DeleteError" } else { "CreateError" };
        let known = if remove { self.removed == Some(false) } else { self.created == Some(false) };
        if remove {
            self.removed = Some(false);
        } else {
            self.created = Some(false);
        }
        if !known || self.failed_at.is_none() {
            self.failed_at = Some(Timestamp::from_second(now.as_second()).unwrap_or(now));
        }
        self.failure = Some((error.to_owned(), text));
    }

    /// A machine that is done has no failure.
    pub(super) fn settle(&mut self, machine: &Machine) {
        if self.created == Some(true) && !machine.deleting {
            self.failure = None;
            self.failed_at = None;
        }
    }
}
