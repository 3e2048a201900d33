//! The controller of NodeDrivers: an active driver gets its schema and its kinds. Too small for rooms of its own: [`schema`]
//! renders both.

use drover_api::management::v3::{DynamicSchema, NodeDriver, NodeDriverSpec, NodeDriverStatus};
use drover_api::names::JOB_RUNNER;
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

use super::schema;
use crate::conditions as generic;
use crate::context::Context;
use crate::keys::{annotations, conditions, labels};
use crate::store::{Writer, status_of};

/// Name of the built-in driver that makes machines on this host.
pub const LOCAL_DRIVER: &str = "local";

/// That driver.
pub fn local_driver(active: bool) -> NodeDriver {
    let spec = NodeDriverSpec {
        display_name: LOCAL_DRIVER.into(),
        description: "Machines on the server's own host".into(),
        active,
        builtin: true,
        url: "local://".into(),
        ..NodeDriverSpec::default()
    };
    NodeDriver::new(LOCAL_DRIVER, spec)
}

/// Reconciles one NodeDriver.
pub struct NodeDrivers {
    context: Context,
    writer: Writer,
}

impl NodeDrivers {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), writer: Writer::new(&context.store, "nodedriver", "kinds") }
    }

    async fn report(&self, driver: &NodeDriver, active: bool, problem: &str) -> Result<(), Error> {
        let now = self.context.now();
        let live = driver.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let mut list = live;
        for (type_, on) in [
            (conditions::ACTIVE, active),
            (conditions::DOWNLOADED, active),
            (conditions::INACTIVE, !active && problem.is_empty()),
            (conditions::INSTALLED, active),
        ] {
            generic::set(&mut list, type_, if on { generic::TRUE } else { generic::FALSE }, "", problem, now);
        }
        let status = NodeDriverStatus {
            conditions: list,
            applied_url: driver.spec.url.clone(),
            ..NodeDriverStatus::default()
        };
        let key = ObjectKey::of(driver);
        self.writer.apply_status(&status_of::<NodeDriver>(&key, status)).await?;
        Ok(())
    }
}

impl Reconciler for NodeDrivers {
    const NAME: &'static str = "nodedriver";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(driver) = self.context.store.drivers.get(&key) else { return Ok(Next::EVENT) };
        if driver.metadata.deletion_timestamp.is_some() {
            return Ok(Next::EVENT);
        }
        let name = driver_name(&driver);
        if !driver.spec.active {
            // The kinds stay: deleting them would delete every machine of the driver.
            self.report(&driver, false, "").await?;
            return Ok(Next::EVENT);
        }
        let Some(flags) = self.context.drivers.flags(&name) else {
            let problem = format!("there is no built-in driver {name:?}, and drivers are not downloaded yet");
            self.report(&driver, false, &problem).await?;
            return Ok(Next::EVENT);
        };
        let note = |key: &str| {
            driver.metadata.annotations.as_ref().and_then(|a| a.get(key)).cloned().unwrap_or_default()
        };
        let passwords: Vec<String> = [annotations::PASSWORD_FIELDS, annotations::PRIVATE_CREDENTIAL_FIELDS]
            .iter()
            .flat_map(|key| note(key).split(',').map(|field| field.trim().to_owned()).collect::<Vec<_>>())
            .filter(|field| !field.is_empty())
            .collect();
        let spec = schema::schema(&name, &flags, &passwords);
        let mut kind = DynamicSchema::new(&schema::schema_name(&name), spec.clone());
        kind.metadata.labels = Some([(labels::NODE_DRIVER_NAME.to_owned(), name.clone())].into());
        self.writer.apply(&kind).await?;
        for crd in schema::crds(&name, &spec) {
            let crd: CustomResourceDefinition =
                serde_json::from_value(crd).map_err(Error::other("read a driver's CRD"))?;
            self.writer.apply(&crd).await?;
        }
        self.report(&driver, true, "").await?;
        Ok(Next::EVENT)
    }
}

/// The driver's name: what it is called, in lower case.
pub fn driver_name(driver: &NodeDriver) -> String {
    let shown = driver.spec.display_name.as_str();
    let name = if shown.is_empty() { driver.metadata.name.as_deref().unwrap_or_default() } else { shown };
    name.to_lowercase()
}

/// `managedBy` of the Jobs of a driver: what the NodeDriver's annotation says, or Drover's own runner.
pub fn job_runner(driver: Option<&NodeDriver>) -> String {
    let annotation = driver.and_then(|driver| driver.annotations().get(annotations::JOB_MANAGED_BY));
    annotation.filter(|value| !value.is_empty()).cloned().unwrap_or_else(|| JOB_RUNNER.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_of_a_driver_says_who_runs_its_jobs() {
        let driver = |name: &str, runner: Option<&str>| {
            let mut driver = NodeDriver::new(name, Default::default());
            driver.metadata.annotations =
                runner.map(|runner| [(annotations::JOB_MANAGED_BY.to_owned(), runner.to_owned())].into());
            driver
        };
        assert_eq!(job_runner(Some(&driver("mine", Some("example.com/mine")))), "example.com/mine");
        for driver in [None, Some(driver("local", None)), Some(driver("odd", Some("")))] {
            assert_eq!(job_runner(driver.as_ref()), JOB_RUNNER, "{driver:?}");
        }
    }
}
