//! Where the machines of a pool come from: a driver's Config becomes a machine template. Pure.

use drover_api::capi::v1beta2::ContractVersionedObjectReference;
use drover_api::provisioning::v1::{Cluster, RKEMachinePool};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;

use super::template::{self, CONFIG_API_VERSION};
use super::{Sources, group_of};
use crate::dynamic::MACHINE_GROUP;
use crate::init::pools::deployment_name;

/// A Config, by kind and name.
pub type ConfigRef = (String, String);

/// What the machines of a pool are made from.
pub struct Infrastructure {
    pub reference: ContractVersionedObjectReference,
    /// The template and the Config that it is made from; none for providers of others.
    pub own: Option<(DynamicObject, ConfigRef)>,
}

/// Where a pool's machines come from, or why from nowhere; no reason if that is said already.
pub fn infrastructure(
    cluster: &Cluster,
    pool: &RKEMachinePool,
    sources: &Sources,
) -> Result<Infrastructure, Option<String>> {
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let reference = &pool.machine_config_ref;
    let (kind, config_name) =
        (reference.kind.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default());
    let api_version = reference.api_version.as_deref().unwrap_or_default();
    if !api_version.is_empty() && api_version != CONFIG_API_VERSION {
        let api_group = group_of(api_version).to_owned();
        let reference = ContractVersionedObjectReference { api_group, kind, name: config_name };
        return Ok(Infrastructure { reference, own: None });
    }
    if kind.is_empty() || config_name.is_empty() {
        return Err(None);
    }
    let refuse = |why: String| Some(format!("machineConfigRef: {why}"));
    let Some(fields) = recorded_fields(pool).or_else(|| sources.schemas.get(&kind).cloned()) else {
        return Err(refuse(format!("no active node driver provides the kind {kind}")));
    };
    let Some(config) = sources.configs.get(&(kind.clone(), config_name.clone())) else {
        return Err(refuse(format!("{kind} {namespace}/{config_name} does not exist")));
    };
    check_owner(cluster, config)
        .map_err(|owner| refuse(format!("{kind} {namespace}/{config_name} is already owned by {owner}")))?;
    let credential = match pool.cloud_credential_secret_name.as_str() {
        "" => cluster.spec.cloud_credential_secret_name.as_str(),
        own => own,
    };
    if !credential.is_empty() && !sources.credentials.contains(credential) {
        return Err(Some(format!("cloudCredentialSecretName: Secret {credential} does not exist")));
    }
    let template = template::machine_template(&template::Input {
        namespace,
        cluster: name,
        deployment: &deployment_name(name, &pool.name),
        pool,
        config: &config.data,
        fields: &fields,
        credential,
    });
    let reference = ContractVersionedObjectReference {
        api_group: MACHINE_GROUP.to_owned(),
        kind: template::template_kind(&kind),
        name: template.name_any(),
    };
    Ok(Infrastructure { reference, own: Some((template, (kind, config_name))) })
}

/// The fields that the driver had when the pool was made, if the pool says so.
fn recorded_fields(pool: &RKEMachinePool) -> Option<Vec<String>> {
    let schema: Value = serde_json::from_str(&pool.dynamic_schema_spec).ok()?;
    Some(schema.get("resourceFields")?.as_object()?.keys().cloned().collect())
}

/// A Config belongs to one cluster.
fn check_owner(cluster: &Cluster, config: &DynamicObject) -> Result<(), String> {
    for owner in config.owner_references() {
        let ours = Some(&owner.uid) == cluster.metadata.uid.as_ref();
        if !ours && (owner.kind == "Cluster" || owner.controller == Some(true)) {
            return Err(format!("{} {}", owner.kind, owner.name));
        }
    }
    Ok(())
}
