//! What a decision about one infra machine depends on.

use std::sync::Arc;

use kube::api::DynamicObject;
use serde_json::Value;

use super::state::Machine;
use super::waits::Waiting;
use crate::machine::args::ClusterNames;
use crate::settings::Settings;

/// Everything a pass looks at.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub machine: Machine,
    /// The owning CAPI Machine according to the owner references, whether it exists or not.
    pub owner: Option<String>,
    /// The owning CAPI Machine; none while it is unknown or once it is deleted.
    pub capi_machine: Option<String>,
    pub cluster: ClusterNames,
    /// The owner is still a MachineSet: no Machine has adopted it.
    pub owned_by_set: bool,
    /// Why creation cannot begin yet: the first of the gates that is closed.
    pub blocked: Option<Waiting>,
    /// Bootstrap data secret.
    pub bootstrap_secret: Option<String>,
    pub job: Option<JobView>,
    pub namespace_terminating: bool,
    /// Who runs the Jobs of the driver.
    pub managed_by: String,
    pub settings: Settings,
}

/// The Job as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobView {
    pub remove: bool,
    pub deleting: bool,
    pub complete: bool,
    /// Reason and message of the failure; the termination message of the newest failed pod if there is one.
    pub failed: Option<(String, String)>,
}

/// The object itself: as it was read, and as JSON with its types.
pub struct Infra {
    pub object: Arc<DynamicObject>,
    pub value: Value,
}
