//! Everything a pass over an RKEBootstrap looks at.

use std::sync::Arc;

use drover_api::rke::v1::RKEBootstrap;

use super::objects::Owners;

/// An RKEBootstrap and what surrounds it.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub bootstrap: Arc<RKEBootstrap>,
    /// None until Cluster API has made its Machine the owner.
    pub machine: Option<MachineView>,
    /// The bootstrap is being deleted, or it or its Cluster is paused.
    pub stopped: bool,
    /// The CAPI Cluster exists and its infrastructure is provisioned.
    pub provisioned: bool,
    /// The plan secret exists.
    pub has_plan_secret: bool,
    /// The secret with the script exists.
    pub has_bootstrap_secret: bool,
    pub account: Account,
    /// The script that the server of the machine runs, once the account has a token.
    pub script: Option<String>,
}

/// The Machine.
#[derive(Clone, Debug, Default)]
pub struct MachineView {
    pub owners: Owners,
    /// A person brought the server and it has registered already.
    pub custom: bool,
    /// The Machine is being deleted, or has failed for good.
    pub ending: bool,
}

/// The bootstrap account, as far as it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Account {
    #[default]
    Missing,
    /// It has no Secret for its token.
    NoTokenSecret,
    /// The API server has not filled in the token.
    NoToken,
    Ready,
}
