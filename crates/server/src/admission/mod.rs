//! Defaults and validation inside the embedded API: what upstream needs webhooks for.
//!
//! The rules are where their objects are at home, in `capi` and `provisioning`; here they meet the API.

mod capi;
mod look;
mod provisioning;
mod servers;
mod settings;
mod tokens;

use std::sync::Arc;

use drover_apiserver::admission::Admission;
use drover_apiserver::embedded::Embedded;

/// The hooks that need nothing but the write itself.
pub fn hooks() -> Vec<Arc<dyn Admission>> {
    vec![
        Arc::new(capi::ClusterApi),
        Arc::new(provisioning::PlanSecrets),
        Arc::new(provisioning::Possible),
        Arc::new(provisioning::RecordedSchemas),
        Arc::new(settings::Usable),
        Arc::new(provisioning::Twins),
        Arc::new(tokens::Readable),
    ]
}

/// Adds the hooks that look at other objects, which only a running API has.
pub fn watch_over(embedded: &Arc<Embedded>) {
    let around = look::Around(Arc::downgrade(embedded));
    let objects = embedded.server().objects();
    objects.add_admission(Arc::new(provisioning::InUse(around.clone())));
    objects.add_admission(Arc::new(servers::Servers(around)));
}
