//! The objects of one provisioning attempt: secrets, account and Job.

use std::collections::BTreeMap;

use drover_api::names::safe_concat_name;
use serde_json::{Map, Value, json};

use crate::keys::{annotations, labels};
use crate::machine::args::{Command, driver_flags, driver_of, environment, hostname, instance_name};
use crate::settings::Settings;
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// Names of everything that belongs to an infra machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub env_secret: String,
    pub state_secret: String,
    /// Account, role, binding and Job.
    pub provision: String,
}

impl Names {
    pub fn of(machine: &str) -> Self {
        Self {
            env_secret: safe_concat_name(&[machine, "machine", "driver", "secret"]),
            state_secret: safe_concat_name(&[machine, "machine", "state"]),
            provision: safe_concat_name(&[machine, "machine", "provision"]),
        }
    }
}

/// What a Job is made of.
pub struct Input<'a> {
    pub infra: &'a Value,
    pub capi_machine: &'a str,
    pub bootstrap_secret: &'a str,
    pub driver_url: &'a str,
    pub driver_hash: &'a str,
    pub credential: &'a BTreeMap<String, Vec<u8>>,
    pub settings: &'a Settings,
    /// Who runs the Job.
    pub managed_by: &'a str,
    pub attempt: i64,
}

impl Input<'_> {
    fn text(&self, key: &str) -> &str {
        self.infra["metadata"][key].as_str().unwrap_or_default()
    }

    fn kind(&self) -> &str {
        self.infra["kind"].as_str().unwrap_or_default()
    }

    fn labels(&self, remove: bool) -> Value {
        let (group, version) =
            self.infra["apiVersion"].as_str().and_then(|v| v.split_once('/')).unwrap_or_default();
        json!({
            labels::INFRA_MACHINE_GROUP: group,
            labels::INFRA_MACHINE_VERSION: version,
            labels::INFRA_MACHINE_KIND: self.kind(),
            labels::INFRA_MACHINE_NAME: label_value(self.text("name")),
            labels::INFRA_REMOVE: remove.to_string(),
            labels::CAPI_MACHINE_NAME: label_value(self.capi_machine),
        })
    }
}

/// A label's value may have 63 characters.
fn label_value(name: &str) -> String {
    safe_concat_name(&[name])
}

/// Everything but the Job and the state secret's content.
pub fn support(input: &Input<'_>) -> Vec<Value> {
    let namespace = input.text("namespace");
    let names = Names::of(input.text("name"));
    let data: Map<String, Value> =
        environment(&driver_of(input.kind()), &input.settings.proxy_env, input.credential)
            .into_iter()
            .map(|(key, value)| (key, json!(BASE64_STANDARD.encode(value))))
            .collect();
    let backup = json!({labels::BACKUP: "true"});
    vec![
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": namespace, "name": names.env_secret, "labels": backup},
            "type": "Opaque", "data": data,
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": namespace, "name": names.state_secret, "labels": backup},
            "type": drover_api::secret_types::MACHINE_STATE,
        }),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"namespace": namespace, "name": names.provision},
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"namespace": namespace, "name": names.provision},
            "rules": [{
                "apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "update"],
                "resourceNames": [names.state_secret],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"namespace": namespace, "name": names.provision},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": names.provision},
            "subjects": [{"kind": "ServiceAccount", "name": names.provision, "namespace": namespace}],
        }),
    ]
}

/// The Job that creates or removes the server.
pub fn job(input: &Input<'_>, remove: bool) -> Value {
    let namespace = input.text("namespace");
    let name = input.text("name");
    let names = Names::of(name);
    let driver = driver_of(input.kind());
    let command = Command {
        driver_url: input.driver_url,
        driver_hash: input.driver_hash,
        namespace,
        state_secret: &names.state_secret,
    };
    let instance = instance_name(name);
    let empty = Map::new();
    let spec = input.infra["spec"].as_object().unwrap_or(&empty);
    let limit = input.infra["metadata"]["annotations"][annotations::HOSTNAME_LENGTH_LIMIT].as_str();
    let args = if remove {
        command.remove(&instance)
    } else {
        let host = hostname(name, limit);
        command.create(&driver, Some(&host), driver_flags(&driver, spec), &instance)
    };
    let marks = input.labels(remove);
    let image = match input.settings.system_default_registry.as_str() {
        "" => input.settings.machine_provision_image.clone(),
        registry => format!("{registry}/{}", input.settings.machine_provision_image),
    };
    let mut container = json!({
        "name": "machine",
        "image": image,
        "imagePullPolicy": input.settings.machine_provision_image_pull_policy,
        "args": args,
        "envFrom": [{"secretRef": {"name": names.env_secret}}],
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000},
    });
    let mut pod = json!({
        "serviceAccountName": names.provision,
        "restartPolicy": "Never",
        "securityContext": {"fsGroup": 1000},
    });
    if !remove {
        container["volumeMounts"] =
            json!([{"name": "bootstrap", "mountPath": "/run/secrets/machine", "readOnly": false}]);
        pod["volumes"] = json!([{"name": "bootstrap", "secret": {"secretName": input.bootstrap_secret, "defaultMode": 511}}]);
    }
    pod["containers"] = json!([container]);
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "namespace": namespace,
            "name": names.provision,
            "labels": marks,
            "annotations": {annotations::PROVISION_ATTEMPT: input.attempt.to_string()},
        },
        "spec": {
            "managedBy": input.managed_by,
            "backoffLimit": if remove { 3 } else { 0 },
            "activeDeadlineSeconds": input.settings.machine_job_deadline.as_secs(),
            "template": {"metadata": {"labels": marks}, "spec": pod},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioning_check_24_one_job_with_sorted_args() {
        let infra = json!({
            "apiVersion": "rke-machine.cattle.io/v1", "kind": "LocalMachine",
            "metadata": {"namespace": "default", "name": "demo-w-1.x"},
            "spec": {"memory": "512", "cpus": "2", "common": {}},
        });
        let (credential, settings) = (BTreeMap::new(), Settings::default());
        let input = Input {
            infra: &infra,
            capi_machine: "demo-w-1",
            bootstrap_secret: "demo-w-1-machine-bootstrap",
            driver_url: "",
            driver_hash: "",
            credential: &credential,
            settings: &settings,
            managed_by: drover_api::names::JOB_RUNNER,
            attempt: 1,
        };
        let job = job(&input, false);
        assert_eq!(
            job["spec"]["template"]["spec"]["containers"][0]["args"],
            json!([
                "--driver-download-url=",
                "--driver-hash=",
                "--secret-namespace=default",
                "--secret-name=demo-w-1.x-machine-state",
                "create",
                "--driver=local",
                "--custom-install-script=/run/secrets/machine/value",
                "--hostname-override=demo-w-1-x",
                "--local-cpus=2",
                "--local-memory=512",
                "demo-w-1-x",
            ])
        );
        assert_eq!(job["spec"]["backoffLimit"], 0);
        assert_eq!(job["spec"]["managedBy"], "drover.io/job-runner");
        assert_eq!(job["metadata"]["labels"].as_object().unwrap().len(), 6);
        assert_eq!(job["spec"]["template"]["spec"]["containers"][0]["securityContext"]["runAsUser"], 1000);
        let remove = super::job(&input, true);
        assert_eq!(remove["spec"]["backoffLimit"], 3);
        assert_eq!(remove["metadata"]["labels"][labels::INFRA_REMOVE], "true");
        assert!(remove["spec"]["template"]["spec"].get("volumes").is_none());
        let state = &support(&input)[1];
        assert!(state.get("data").is_none(), "its content is the driver's");
    }
}
