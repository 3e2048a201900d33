//! Reads caches into a [`Scope`].

use std::sync::Arc;

use drover_api::capi::v1beta2 as capi;
use drover_api::rke::v1::RKEBootstrap;
use drover_runtime::ObjectKey;
use kube::ResourceExt;

use super::objects::{self, Owners, service_account_token};
use super::scope::{Account, MachineView, Scope};
use super::{Bootstraps, script};
use crate::controlplane::planner::entry::CUSTOM_MACHINE;
use crate::keys::annotations;
use crate::owner::owner_name;

impl Bootstraps {
    pub(super) fn observe(&self, bootstrap: &Arc<RKEBootstrap>) -> Scope {
        let store = &self.context.store;
        let key = ObjectKey::of(bootstrap.as_ref());
        let machine = owner_name(&bootstrap.metadata, "cluster.x-k8s.io", "Machine")
            .and_then(|name| store.machines.get(&key.sibling(name)));
        let cluster = machine
            .as_ref()
            .and_then(|machine| store.capi_cluster(&key.namespace, &machine.spec.cluster_name));
        let (_, paused, provisioned) = cluster.as_deref().map(super::cluster_facts).unwrap_or_default();
        let name = objects::bootstrap_name(&key.name);
        let (account, token) = self.account(&key, &name);
        let script = token.zip(machine.as_ref()).map(|(token, machine)| self.script(&key, machine, &token));
        Scope {
            bootstrap: bootstrap.clone(),
            machine: machine.map(|machine| MachineView {
                owners: Owners { machine: machine.name_any(), cluster: machine.spec.cluster_name.clone() },
                custom: machine.spec.infrastructure_ref.kind == CUSTOM_MACHINE,
                ending: is_ending(&machine),
            }),
            stopped: bootstrap.metadata.deletion_timestamp.is_some()
                || paused
                || bootstrap.annotations().contains_key(annotations::capi::PAUSED),
            provisioned,
            has_plan_secret: store.secrets.get(&key.sibling(objects::plan_name(&key.name))).is_some(),
            has_bootstrap_secret: store.secrets.get(&key.sibling(&name)).is_some(),
            account,
            script,
        }
    }

    /// The bootstrap account and its token.
    fn account(&self, key: &ObjectKey, name: &str) -> (Account, Option<String>) {
        let store = &self.context.store;
        let Some(account) = store.accounts.get(&key.sibling(name)) else { return (Account::Missing, None) };
        let secret = objects::token_secret_name(name, &account.uid().unwrap_or_default());
        let Some(secret) = store.secrets.get(&key.sibling(secret)) else {
            return (Account::NoTokenSecret, None);
        };
        match service_account_token(&secret) {
            Some(token) => (Account::Ready, Some(token)),
            None => (Account::NoToken, None),
        }
    }

    fn script(&self, key: &ObjectKey, machine: &capi::Machine, token: &str) -> String {
        let control_plane = self.context.store.control_planes.get(&key.sibling(&machine.spec.cluster_name));
        let spec = control_plane.map(|control_plane| control_plane.spec.clone()).unwrap_or_default();
        let directories = spec.config.data_directories.unwrap_or_default();
        script::render(&script::Input {
            settings: &self.context.settings.now(),
            agent_env_vars: &spec.agent_env_vars,
            agent_var_dir: &directories.system_agent,
            token: Some(&script::registration_token(token)),
            body: &self.context.install_script,
        })
    }
}

/// Whether nothing will be made of the Machine any more.
pub(super) fn is_ending(machine: &capi::Machine) -> bool {
    let phase = machine.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    ["Deleting", "Deleted", "Failed"].contains(&phase) || machine.metadata.deletion_timestamp.is_some()
}
