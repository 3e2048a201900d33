//! The machines behind tunnels, according to provisioning.

use drover_access::authority::Authority;
use drover_access::machines::{Machine, Machines};
use drover_apiserver::UserInfo;
use drover_provisioning::context::Context;
use drover_provisioning::registration::machines;
use drover_runtime::ObjectKey;
use drover_runtime::events::Note;

/// Answers the questions of `access` about machines.
pub struct ProvisionedMachines(pub Context);

impl Machines for ProvisionedMachines {
    fn is_ready(&self) -> bool {
        let store = &self.0.store;
        store.is_synced() && store.bootstraps.is_synced() && store.clusters.is_synced()
    }

    fn machine_of(&self, user: &UserInfo) -> Option<Machine> {
        let machine = machines::machine_of_user(&self.0.store, &user.name)?;
        let cluster = machines::management_of(&self.0.store, &machine)?;
        let carries_tunnel = machines::is_server(&machine);
        Some(Machine { key: ObjectKey::of(machine.as_ref()), cluster, carries_tunnel })
    }

    fn exists(&self, machine: &ObjectKey) -> bool {
        self.0.store.machines.get(machine).is_some()
    }

    fn authorities(&self, cluster: &str) -> Vec<Authority> {
        let reported = machines::reported_authorities(&self.0.store, cluster);
        reported.iter().filter_map(|pem| Authority::from_pem(pem)).collect()
    }

    fn accepts_registration_tokens(&self) -> bool {
        self.0.settings.now().tunnel_registration_token
    }

    /// Records an event on the provisioning Cluster, or on the management Cluster if there is none.
    fn record_event(&self, cluster: &str, note: &Note) {
        let store = &self.0.store;
        if let Some(provisioned) = store.management_ids.cluster_of(cluster) {
            self.0.events.publish(provisioned.as_ref(), [note]);
        } else if let Some(twin) = store.twins.get(&ObjectKey::cluster(cluster)) {
            self.0.events.publish(twin.as_ref(), [note]);
        }
    }
}
