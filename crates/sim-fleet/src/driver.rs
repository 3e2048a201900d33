//! The driver `sim` in the management plane: a NodeDriver whose Jobs a fleet runs.

use std::time::Duration;

use drover_api::annotations::drover::JOB_MANAGED_BY;
use drover_api::conditions::cattle;
use drover_api::management::v3::{NodeDriver, NodeDriverSpec};
use drover_runtime::Error;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};

/// Name of the driver.
pub const DRIVER: &str = "sim";
/// `spec.managedBy` of its Jobs.
pub const JOB_RUNNER: &str = "drover.io/sim-fleet";
/// Field manager of a fleet.
pub const MANAGER: &str = "drover-sim-fleet";
const CONFIG_KIND: &str = "SimConfig";
const LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);

/// `SimConfig`.
pub fn configs() -> ApiResource {
    let gvk = GroupVersionKind::gvk("rke-machine-config.cattle.io", "v1", CONFIG_KIND);
    ApiResource::from_gvk_with_plural(&gvk, "simconfigs")
}

/// `SimMachine`.
pub fn machines() -> ApiResource {
    let gvk = GroupVersionKind::gvk("rke-machine.cattle.io", "v1", "SimMachine");
    ApiResource::from_gvk_with_plural(&gvk, "simmachines")
}

/// Registers and activates the driver, and waits until its kinds are served.
pub async fn activate(client: &Client) -> Result<(), Error> {
    let drivers: Api<NodeDriver> = Api::all(client.clone());
    let mut driver = NodeDriver::new(
        DRIVER,
        NodeDriverSpec {
            active: true,
            builtin: true,
            display_name: DRIVER.into(),
            description: "Simulated machines inside a `drover sim fleet` process".into(),
            url: "local://".into(),
            ..NodeDriverSpec::default()
        },
    );
    driver.annotations_mut().insert(JOB_MANAGED_BY.into(), JOB_RUNNER.into());
    let params = PatchParams::apply(MANAGER).force();
    drivers
        .patch(DRIVER, &params, &Patch::Apply(&driver))
        .await
        .map_err(Error::api(format!("register NodeDriver {DRIVER}")))?;
    let served = tokio::time::timeout(LIMIT, until_served(client, &drivers));
    served.await.unwrap_or_else(|_| {
        let limit = LIMIT.as_secs();
        Err(Error::Invalid(format!(
            "the kinds of NodeDriver {DRIVER} are not served after {limit} s; check that a `drover server` is running on this API"
        )))
    })
}

async fn until_served(client: &Client, drivers: &Api<NodeDriver>) -> Result<(), Error> {
    // Untyped: only one condition is read, and the type of schemas takes long to compile.
    let crds = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let crds: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&crds));
    let wanted = [configs(), machines()].map(|kind| format!("{}.{}", kind.plural, kind.group));
    loop {
        let driver = drivers.get(DRIVER).await.map_err(Error::api(format!("read NodeDriver {DRIVER}")))?;
        let conditions = driver.status.map(|status| status.conditions).unwrap_or_default();
        let active = conditions.iter().find(|condition| condition.type_ == cattle::ACTIVE);
        if let Some(why) = active.filter(|active| active.status == "False" && !active.message.is_empty()) {
            let message = &why.message;
            return Err(Error::Invalid(format!(
                "the server does not support the driver {DRIVER}: {message}"
            )));
        }
        let mut served = active.is_some_and(|active| active.status == "True");
        for name in &wanted {
            let crd = crds.get_opt(name).await.map_err(Error::api(format!("read CRD {name}")))?;
            let conditions = crd.as_ref().and_then(|crd| crd.data["status"]["conditions"].as_array());
            let established =
                conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True");
            served &= established;
        }
        if served {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}
