//! The controller of RKEClusters. Too small for rooms of its own: [`decide`] is pure, and it writes either the endpoint or the
//! status.

use drover_api::rke::v1::{APIEndpoint, RKECluster};
use drover_runtime::{Error, Next, ObjectKey, Reconciler};

use super::decide::{Decision, ENDPOINT, decide};
use crate::context::Context;
use crate::keys::annotations;
use crate::owner::owner_name;
use crate::store::{Writer, status_of};

/// Reconciles one RKECluster.
pub struct Clusters {
    context: Context,
    writer: Writer,
}

impl Clusters {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), writer: Writer::new(&context.store, "rkecluster", "provider") }
    }
}

impl Reconciler for Clusters {
    const NAME: &'static str = "rkecluster";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let store = &self.context.store;
        let Some(cluster) = store.rke_clusters.get(&key) else { return Ok(Next::EVENT) };
        let owner = owner_name(&cluster.metadata, "cluster.x-k8s.io", "Cluster")
            .and_then(|name| store.capi_cluster(&key.namespace, name));
        let paused_here =
            cluster.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(annotations::capi::PAUSED));
        let paused = owner.map(|owner| owner.spec.paused.unwrap_or(false) || paused_here);
        match decide(&cluster, paused, self.context.now()) {
            Decision::Leave => {}
            Decision::SetEndpoint => {
                let mut desired = RKECluster::new(&key.name, Default::default());
                desired.metadata.namespace = Some(key.namespace.clone());
                desired.spec.control_plane_endpoint =
                    Some(APIEndpoint { host: ENDPOINT.0.to_owned(), port: ENDPOINT.1 });
                self.writer.apply(&desired).await?;
            }
            Decision::SetStatus(status) => {
                let desired = status_of::<RKECluster>(&key, status);
                self.writer.apply_status(&desired).await?;
            }
        }
        Ok(Next::EVENT)
    }
}
