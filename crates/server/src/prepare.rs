//! Creates what must exist before the first controller starts: kinds, namespaces, and settings that clients read.

use std::time::Duration;

use anyhow::{Context, bail};
use drover_access::registration::CREDENTIAL_NAMESPACE;
use drover_api::management::v3::Setting;
use drover_apiserver::storage::StorageError;
use drover_provisioning::settings::Settings;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

/// Namespaces that Rancher's clients expect.
const NAMESPACES: [&str; 4] = [SYSTEM_NAMESPACE, CREDENTIAL_NAMESPACE, "fleet-default", "fleet-local"];
const SYSTEM_NAMESPACE: &str = "cattle-system";
/// An API on a busy host may take this long to serve new kinds.
const ESTABLISHED_LIMIT: Duration = Duration::from_secs(60);
const CALL_LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// Creates or updates everything. `health` is the state of the store, if the API is embedded.
pub(crate) async fn run(
    client: &Client,
    settings: &Settings,
    health: impl Fn() -> Result<(), StorageError>,
) -> anyhow::Result<()> {
    let params = params();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut kinds = vec![];
    for crd in drover_api::crds() {
        let name = crd.name_any();
        let doing = || format!("failed to install CRD {name}");
        within(crds.patch(&name, &params, &Patch::Apply(&crd))).await.with_context(doing)?;
        kinds.push(name);
    }
    established(&crds, kinds, health).await?;
    for name in NAMESPACES {
        namespace(client, name).await?;
    }
    let values = [
        ("server-url", settings.server_url.as_str()),
        ("internal-server-url", settings.internal_server_url.as_str()),
        // Trimmed, because an additional newline would change the checksum that agents compute.
        ("cacerts", settings.cacerts.trim()),
    ];
    for (name, value) in values {
        setting(client, name, value).await.with_context(|| format!("failed to write setting {name}"))?;
    }
    Ok(())
}

/// Writes the value that this server was started with. If a user has set another one, it becomes only the default.
async fn setting(client: &Client, name: &str, value: &str) -> anyhow::Result<()> {
    let resource = ApiResource::erase::<Setting>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut setting = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name},
        "default": value, "value": value,
    });
    let polite = PatchParams { force: false, ..params() };
    match tokio::time::timeout(CALL_LIMIT, api.patch(name, &polite, &Patch::Apply(&setting))).await? {
        Err(kube::Error::Api(status)) if status.is_conflict() => {}
        other => return Ok(other.map(|_| ())?),
    }
    tracing::info!(name, default = value, "a user has set another value for a setting; it stays in effect");
    if let Some(setting) = setting.as_object_mut() {
        setting.remove("value");
    }
    within(api.patch(name, &params(), &Patch::Apply(&setting))).await.map(|_| ())
}

/// The namespace for objects of the management plane itself.
pub(crate) async fn system_namespace(client: &Client) -> anyhow::Result<()> {
    namespace(client, SYSTEM_NAMESPACE).await
}

fn params() -> PatchParams {
    PatchParams::apply("drover/server/prepare").force()
}

async fn namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    within(api.patch(name, &params(), &Patch::Apply(&namespace)))
        .await
        .with_context(|| format!("failed to create namespace {name}"))?;
    Ok(())
}

/// Waits until the kinds are served. With a store that cannot write, they never are.
async fn established(
    crds: &Api<CustomResourceDefinition>,
    mut kinds: Vec<String>,
    health: impl Fn() -> Result<(), StorageError>,
) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + ESTABLISHED_LIMIT;
    loop {
        let mut why = String::new();
        while let Some(name) = kinds.last() {
            let crd = within(crds.get(name)).await.with_context(|| format!("failed to read CRD {name}"))?;
            let condition = |type_: &str| {
                let all = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
                all.into_iter().find(|condition| condition.type_ == type_)
            };
            if condition("Established").is_none_or(|condition| condition.status != "True") {
                let refused = condition("NamesAccepted").filter(|condition| condition.status == "False");
                why = refused.and_then(|condition| condition.message.clone()).unwrap_or_default();
                break;
            }
            kinds.pop();
        }
        let Some(name) = kinds.last() else { return Ok(()) };
        health().with_context(|| format!("failed to install CRD {name}"))?;
        if tokio::time::Instant::now() > deadline {
            bail!("CRD {name} is not served by the API: {why}");
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn within<T>(call: impl Future<Output = Result<T, kube::Error>>) -> anyhow::Result<T> {
    Ok(tokio::time::timeout(CALL_LIMIT, call).await??)
}
