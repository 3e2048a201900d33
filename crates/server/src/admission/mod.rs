//! Defaults and validation in the embedded API. Upstream uses webhooks for them.
//!
//! The rules are in `capi` and `provisioning`, beside their controllers; this module connects them to the API.

mod capi;
mod provisioning;
mod reader;
mod servers;
mod settings;
mod tokens;

use std::sync::Arc;

use drover_apiserver::admission::Admission;
use drover_apiserver::embedded::Embedded;

/// The hooks that need only the request.
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

/// Adds the hooks that read other objects, which requires a running API.
pub fn watch_over(embedded: &Arc<Embedded>) {
    let reader = reader::ApiReader(Arc::downgrade(embedded));
    let objects = embedded.server().objects();
    objects.add_admission(Arc::new(provisioning::InUse(reader.clone())));
    objects.add_admission(Arc::new(servers::Servers(reader)));
}
