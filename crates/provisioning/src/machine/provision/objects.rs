//! The objects of one provisioning attempt: secrets, account and Job.

use std::collections::BTreeMap;

use drover_api::names::safe_concat_name;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, PodSecurityContext, PodSpec, PodTemplateSpec, Secret, SecretEnvSource,
    SecretVolumeSource, SecurityContext, ServiceAccount, Volume, VolumeMount,
};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::api::ObjectMeta;
use serde_json::{Map, Value};

use crate::keys::{annotations, labels};
use crate::machine::args::{
    ClusterNames, Command, driver_flags, driver_of, environment, hostname, instance_name,
};
use crate::settings::Settings;

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
    pub cluster: &'a ClusterNames,
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

    fn labels(&self, remove: bool) -> BTreeMap<String, String> {
        let (group, version) =
            self.infra["apiVersion"].as_str().and_then(|v| v.split_once('/')).unwrap_or_default();
        [
            (labels::INFRA_MACHINE_GROUP, group.to_owned()),
            (labels::INFRA_MACHINE_VERSION, version.to_owned()),
            (labels::INFRA_MACHINE_KIND, self.kind().to_owned()),
            (labels::INFRA_MACHINE_NAME, label_value(self.text("name"))),
            (labels::INFRA_REMOVE, remove.to_string()),
            (labels::CAPI_MACHINE_NAME, label_value(self.capi_machine)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

/// A label's value may have 63 characters.
fn label_value(name: &str) -> String {
    safe_concat_name(&[name])
}

/// What a Job needs.
pub struct Support {
    /// The environment of the driver, with the credential.
    pub environment: Secret,
    /// Where the driver keeps its state. Applied without data: that is the driver's.
    pub state: Secret,
    pub account: ServiceAccount,
    pub role: Role,
    pub binding: RoleBinding,
}

/// Everything but the Job and the state secret's content.
pub fn support(input: &Input<'_>) -> Support {
    let names = Names::of(input.text("name"));
    let meta = |name: &str| ObjectMeta {
        namespace: Some(input.text("namespace").to_owned()),
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let backup = |name: &str| ObjectMeta {
        labels: Some([(labels::BACKUP.to_owned(), "true".to_owned())].into()),
        ..meta(name)
    };
    let variables = environment(&driver_of(input.kind()), &input.settings.proxy_env, input.credential);
    let data = variables.into_iter().map(|(key, value)| (key, ByteString(value)));
    let rule = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["secrets".into()]),
        verbs: vec!["get".into(), "update".into()],
        resource_names: Some(vec![names.state_secret.clone()]),
        ..PolicyRule::default()
    };
    Support {
        environment: Secret {
            metadata: backup(&names.env_secret),
            type_: Some("Opaque".into()),
            data: Some(data.collect()),
            ..Secret::default()
        },
        state: Secret {
            metadata: backup(&names.state_secret),
            type_: Some(drover_api::secret_types::MACHINE_STATE.to_owned()),
            ..Secret::default()
        },
        account: ServiceAccount { metadata: meta(&names.provision), ..ServiceAccount::default() },
        role: Role { metadata: meta(&names.provision), rules: Some(vec![rule]) },
        binding: RoleBinding {
            metadata: meta(&names.provision),
            role_ref: RoleRef {
                api_group: Some("rbac.authorization.k8s.io".into()),
                kind: "Role".into(),
                name: names.provision.clone(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name: names.provision.clone(),
                namespace: Some(input.text("namespace").to_owned()),
                ..Subject::default()
            }]),
        },
    }
}

/// The Job that creates or removes the server.
pub fn job(input: &Input<'_>, remove: bool) -> Job {
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
        command.create(&driver, Some(&host), driver_flags(&driver, spec, input.cluster), &instance)
    };
    let marks = input.labels(remove);
    let image = match input.settings.system_default_registry.as_str() {
        "" => input.settings.machine_provision_image.clone(),
        registry => format!("{registry}/{}", input.settings.machine_provision_image),
    };
    let mut container = Container {
        name: "machine".into(),
        image: Some(image),
        image_pull_policy: Some(input.settings.machine_provision_image_pull_policy.clone()),
        args: Some(args),
        env_from: Some(vec![EnvFromSource {
            secret_ref: Some(SecretEnvSource { name: names.env_secret, ..SecretEnvSource::default() }),
            ..EnvFromSource::default()
        }]),
        security_context: Some(SecurityContext {
            run_as_user: Some(1000),
            run_as_group: Some(1000),
            ..SecurityContext::default()
        }),
        ..Container::default()
    };
    let mut pod = PodSpec {
        service_account_name: Some(names.provision.clone()),
        restart_policy: Some("Never".into()),
        security_context: Some(PodSecurityContext { fs_group: Some(1000), ..PodSecurityContext::default() }),
        ..PodSpec::default()
    };
    if !remove {
        container.volume_mounts = Some(vec![VolumeMount {
            name: "bootstrap".into(),
            mount_path: "/run/secrets/machine".into(),
            read_only: Some(false),
            ..VolumeMount::default()
        }]);
        pod.volumes = Some(vec![Volume {
            name: "bootstrap".into(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(input.bootstrap_secret.to_owned()),
                default_mode: Some(0o777),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        }]);
    }
    pod.containers = vec![container];
    let attempt = (annotations::PROVISION_ATTEMPT.to_owned(), input.attempt.to_string());
    let deadline = input.settings.machine_job_deadline.as_secs();
    Job {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(names.provision),
            labels: Some(marks.clone()),
            annotations: Some([attempt].into()),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            managed_by: Some(input.managed_by.to_owned()),
            backoff_limit: Some(if remove { 3 } else { 0 }),
            active_deadline_seconds: Some(deadline),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(marks), ..ObjectMeta::default() }),
                spec: Some(pod),
            },
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
            cluster: &ClusterNames::default(),
            bootstrap_secret: "demo-w-1-machine-bootstrap",
            driver_url: "",
            driver_hash: "",
            credential: &credential,
            settings: &settings,
            managed_by: drover_api::names::JOB_RUNNER,
            attempt: 1,
        };
        let job = json!(job(&input, false));
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
        let remove = json!(super::job(&input, true));
        assert_eq!(remove["spec"]["backoffLimit"], 3);
        assert_eq!(remove["metadata"]["labels"][labels::INFRA_REMOVE], "true");
        assert!(remove["spec"]["template"]["spec"].get("volumes").is_none());
        assert_eq!(support(&input).state.data, None, "its content is the driver's");
    }
}
