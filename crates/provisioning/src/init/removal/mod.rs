//! The removal of a cluster: `observe` asks the API what is left, `decide` names the next step, this file carries it out, and
//! the status names what is waited for.

pub mod decide;
mod observe;

use std::time::Duration;

use drover_api::capi::v1beta2::{self as capi, MachineDeployment, MachineHealthCheck};
use drover_api::provisioning::v1::{Cluster, ClusterStatus};
use drover_api::rke::v1::{RKEBootstrapTemplate, RKECluster, RKEControlPlane};
use drover_runtime::{Error, Next, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use serde_json::json;

use self::decide::{GeneratedKind, Leftover, Step, next};
use self::observe::Management;
use super::scope::FINALIZERS;
use super::twin::identity::Identity;
use super::waits::Blocked;
use super::{Init, events, kubeconfig};
use crate::conditions::{self as generic, FALSE, TRUE, UNKNOWN};
use crate::dynamic::MACHINE_GROUP;
use crate::keys::{annotations, conditions};
use crate::store::status_of;

pub(crate) use self::observe::block_of;

/// What blocks is watched; this is for what sends no event.
const AGAIN: Duration = Duration::from_secs(5);
/// The next step follows at once.
const SOON: Duration = Duration::from_millis(50);

impl Init {
    pub(super) async fn remove(&self, cluster: &Cluster) -> Result<Next, Error> {
        let key = ObjectKey::of(cluster);
        let identity = self.identity(cluster);
        let (remaining, management) = self.remaining(cluster, &identity).await?;
        let step = next(&key.name, &identity.id, &remaining);
        let note = events::of_removal(cluster, &step, &identity.id);
        if step == Step::Done {
            self.writer.remove_finalizers(cluster, &FINALIZERS).await?;
            self.context.events.publish(cluster, &note);
            return Ok(Next::EVENT);
        }
        let done =
            self.execute_step(&key, cluster, &identity, &step, &remaining.generated, &management).await;
        if done.as_ref().is_err_and(Error::is_conflict) {
            return done.map(|()| Next::EVENT);
        }
        let error = done.as_ref().err().map(Error::chain);
        if let Some(status) = status(cluster, &step, &identity.id, error.as_deref(), self.context.now()) {
            self.status.apply_status(&status_of::<Cluster>(&key, status)).await?;
        }
        done?;
        self.context.events.publish(cluster, &note);
        Ok(Next::after(if matches!(step, Step::Wait(_)) { AGAIN } else { SOON }))
    }

    async fn execute_step(
        &self,
        key: &ObjectKey,
        cluster: &Cluster,
        identity: &Identity,
        step: &Step,
        generated: &[Leftover],
        management: &Management,
    ) -> Result<(), Error> {
        match step {
            Step::Done | Step::Wait(_) => {}
            Step::MarkNamespace => {
                let uid = management.namespace.as_ref().and_then(|namespace| namespace.metadata.uid.clone());
                let patch = json!({"metadata": {
                    "uid": uid, "annotations": {annotations::CLUSTER_UID: cluster.metadata.uid},
                }});
                self.writer.merge::<Namespace>(&ObjectKey::cluster(&identity.id), patch).await?;
            }
            Step::DeleteTwin => {
                if let Some(twin) = &management.twin {
                    self.writer.delete_this(twin).await?;
                }
            }
            Step::DeleteManagementNamespace => {
                if let Some(namespace) = &management.namespace {
                    self.writer.delete_this(namespace).await?;
                }
            }
            Step::DeleteCapiCluster => self.writer.delete::<capi::Cluster>(key).await?,
            Step::DeleteGenerated => {
                for leftover in generated {
                    self.delete_generated(leftover, &key.sibling(&leftover.name)).await?;
                }
            }
            Step::DeleteKubeconfig => {
                let name = kubeconfig::secret_name(&key.name);
                self.writer.delete::<Secret>(&key.sibling(name)).await?;
            }
        }
        Ok(())
    }

    async fn delete_generated(&self, leftover: &Leftover, key: &ObjectKey) -> Result<(), Error> {
        let writer = &self.writer;
        match &leftover.kind {
            GeneratedKind::Template(kind) => match self.context.store.dynamic.resource(MACHINE_GROUP, kind) {
                Some(resource) => writer.dynamic(&resource).delete(key).await,
                // Deleted with its kind.
                None => Ok(()),
            },
            GeneratedKind::Deployment => writer.delete::<MachineDeployment>(key).await,
            GeneratedKind::HealthCheck => writer.delete::<MachineHealthCheck>(key).await,
            GeneratedKind::RKECluster => writer.delete::<RKECluster>(key).await,
            GeneratedKind::ControlPlane => writer.delete::<RKEControlPlane>(key).await,
            GeneratedKind::BootstrapTemplate => writer.delete::<RKEBootstrapTemplate>(key).await,
        }
    }
}

/// The status while something is left; none for steps that take a moment. Pure.
fn status(
    cluster: &Cluster,
    step: &Step,
    id: &str,
    error: Option<&str>,
    now: Timestamp,
) -> Option<ClusterStatus> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let message = match step {
        _ if error.is_some() => error.unwrap_or_default().to_owned(),
        Step::Wait(blocked) => Blocked::to_string(blocked),
        Step::DeleteTwin => format!("deleting management cluster [{id}]"),
        Step::DeleteCapiCluster => format!("deleting cluster-api cluster [{name}]"),
        _ => return None,
    };
    let mut status = cluster.status.clone().unwrap_or_default();
    for type_ in [conditions::PROVISIONED, conditions::WAITING, conditions::PENDING, conditions::UPDATED] {
        generic::set(&mut status.conditions, type_, TRUE, "", "", now);
    }
    let (value, reason) = if error.is_some() { (FALSE, "Error") } else { (UNKNOWN, "Waiting") };
    generic::set(&mut status.conditions, conditions::REMOVED, value, reason, &message, now);
    generic::set(&mut status.conditions, conditions::READY, UNKNOWN, "Removing", &message, now);
    Some(status)
}
