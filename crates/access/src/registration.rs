//! What a cluster's agent registers when it opens its tunnel: its identity, and the address of its API.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use drover_api::management::v3::{Cluster, ClusterStatus};
use drover_runtime::apply::Applier;
use drover_runtime::{Cache, Error, ObjectKey};
use http::{HeaderMap, StatusCode};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, Resource as _};
use serde::Deserialize;
use tokio::time::Instant;

use crate::authority::Authority;
use crate::tokens::Tokens;

/// The namespace of the Secrets with tokens of downstream service accounts.
pub const CREDENTIAL_NAMESPACE: &str = "cattle-global-data";
/// The prefix of their names, before the cluster's id.
pub const CREDENTIAL_PREFIX: &str = "cluster-serviceaccounttoken-";
/// The key in such a Secret.
pub const CREDENTIAL_KEY: &str = "credential";
/// Annotation of such a Secret: namespace and name of the Machine that registered the cluster with its own
/// credential.
pub const REGISTERED_BY: &str = "drover.io/registered-by";
/// How long to wait for a cache to contain a write.
const SEEN_LIMIT: Duration = Duration::from_secs(2);
/// Polling interval: waiting for a change of a cache would require a subscriber, and registrations are rare.
const SEEN_PERIOD: Duration = Duration::from_millis(10);
const TOKEN_HEADER: &str = "x-api-tunnel-token";
const PARAMS_HEADER: &str = "x-api-tunnel-params";

/// The registration of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterParams {
    /// `host:port` of the API, as seen by the agent.
    #[serde(default)]
    pub address: String,
    /// Token of the service account `cattle-system/cattle`.
    #[serde(default)]
    pub token: String,
    /// base64 of the PEM of the API's CA.
    #[serde(default)]
    pub ca_cert: String,
}

impl ClusterParams {
    /// The certificates in [`Self::ca_cert`], if there are any.
    pub fn authority(&self) -> Option<Authority> {
        Authority::from_pem(&STANDARD.decode(&self.ca_cert).ok()?)
    }
}

#[derive(Deserialize)]
struct Params {
    cluster: Option<ClusterParams>,
}

/// A rejected tunnel: status and text, which old agents log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub text: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
}

/// The registration token of a request.
pub fn token(headers: &HeaderMap) -> Option<&str> {
    header(headers, TOKEN_HEADER)
}

/// The registration in a request.
pub fn params(headers: &HeaderMap) -> Result<ClusterParams, Refusal> {
    let params = header(headers, PARAMS_HEADER).ok_or_else(|| Refusal::bad("missing X-API-Tunnel-Params"))?;
    let json = STANDARD
        .decode(params)
        .map_err(|e| Refusal::bad(format!("X-API-Tunnel-Params is not base64: {e}")))?;
    let params: Params = serde_json::from_slice(&json)
        .map_err(|e| Refusal::bad(format!("X-API-Tunnel-Params is not JSON: {e}")))?;
    let params = params.cluster.ok_or_else(|| Refusal::bad("X-API-Tunnel-Params contains no cluster"))?;
    for (field, value) in
        [("address", &params.address), ("token", &params.token), ("caCert", &params.ca_cert)]
    {
        if value.is_empty() {
            return Err(Refusal::bad(format!("X-API-Tunnel-Params: cluster.{field} is empty")));
        }
    }
    if STANDARD.decode(&params.ca_cert).is_err() {
        return Err(Refusal::bad("X-API-Tunnel-Params: cluster.caCert is not base64"));
    }
    Ok(params)
}

/// Finds the cluster of an agent with only a registration token, and its registration.
pub fn identify(headers: &HeaderMap, tokens: &Tokens) -> Result<(String, ClusterParams), Refusal> {
    let Some(token) = token(headers) else {
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, "failed authentication"));
    };
    let found = tokens.registration(token).ok_or_else(|| Refusal::bad("cluster not found"))?;
    if found.scoped {
        let why = "this registration token is limited to machines of certain roles and cannot open a tunnel";
        return Err(Refusal::new(StatusCode::FORBIDDEN, why));
    }
    Ok((found.cluster, params(headers)?))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty())
}

/// The opener of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisteredBy {
    /// A machine of the cluster, with its own credential.
    Machine(ObjectKey),
    /// A client with a registration token.
    Token,
}

/// Records where a cluster is. An unchanged registration writes nothing.
#[derive(Clone)]
pub struct Registrar {
    clusters: Cache<Cluster>,
    secrets: Cache<Secret>,
    applier: Applier,
}

impl Registrar {
    pub fn new(client: Client, clusters: Cache<Cluster>, secrets: Cache<Secret>) -> Self {
        Self { clusters, secrets, applier: Applier::new(client, "access", "registration") }
    }

    /// Returns when the caches contain the record, so that later connections use the new address.
    pub async fn register(&self, id: &str, params: &ClusterParams, by: &RegisteredBy) -> Result<(), Error> {
        let live = self.clusters.get(&ObjectKey::cluster(id));
        let live = live.ok_or_else(|| Error::Stale(format!("management cluster {id}")))?;
        let secret = credential(&live, id, &params.token, by);
        let key = ObjectKey::of(&secret);
        let known = self.secrets.get(&key);
        let secret = self.applier.apply(&secret, known.as_deref()).await?.sent();
        let desired = endpoint_of(id, params, &live);
        let cluster = self.applier.apply_cluster_status(&desired, Some(&live)).await?.sent();
        let seen = || {
            let (known, live) = (self.secrets.get(&key), self.clusters.get(&ObjectKey::cluster(id)));
            secret.as_ref().is_none_or(|secret| known.is_some_and(|known| known.data == secret.data))
                && cluster.as_ref().is_none_or(|sent| {
                    live.is_none_or(|live| endpoint(live.status.as_ref()) == endpoint(sent.status.as_ref()))
                })
        };
        let deadline = Instant::now() + SEEN_LIMIT;
        while !seen() && Instant::now() < deadline {
            tokio::time::sleep(SEEN_PERIOD).await;
        }
        Ok(())
    }

    /// The machine that registered the cluster, if any.
    pub fn machine_of(&self, id: &str) -> Option<ObjectKey> {
        let secret = self.secrets.get(&credential_key(id))?;
        let (namespace, name) = secret.metadata.annotations.as_ref()?.get(REGISTERED_BY)?.split_once('/')?;
        Some(ObjectKey::new(namespace, name))
    }

    /// Calls `listener` with the id of a cluster whenever its credential changes.
    pub fn on_credential(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        self.secrets.subscribe(move |change| {
            if change.key.namespace == CREDENTIAL_NAMESPACE
                && let Some(id) = change.key.name.strip_prefix(CREDENTIAL_PREFIX)
            {
                listener(id);
            }
        });
    }
}

fn endpoint(status: Option<&ClusterStatus>) -> Option<(&str, &str, &str)> {
    status.map(|status| {
        let ClusterStatus { api_endpoint, ca_cert, service_account_token_secret, .. } = status;
        (api_endpoint.as_str(), ca_cert.as_str(), service_account_token_secret.as_str())
    })
}

fn credential_key(id: &str) -> ObjectKey {
    ObjectKey::new(CREDENTIAL_NAMESPACE, format!("{CREDENTIAL_PREFIX}{id}"))
}

/// The cluster's token; owned by the cluster, so that it is deleted with it.
fn credential(cluster: &Cluster, id: &str, token: &str, by: &RegisteredBy) -> Secret {
    let registered_by = match by {
        RegisteredBy::Machine(machine) => {
            Some([(REGISTERED_BY.to_owned(), format!("{}/{}", machine.namespace, machine.name))].into())
        }
        RegisteredBy::Token => None,
    };
    Secret {
        metadata: ObjectMeta {
            annotations: registered_by,
            owner_references: Some(cluster.owner_ref(&()).into_iter().collect()),
            name: Some(format!("{CREDENTIAL_PREFIX}{id}")),
            namespace: Some(CREDENTIAL_NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        data: Some([(CREDENTIAL_KEY.to_owned(), ByteString(token.into()))].into()),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

fn endpoint_of(id: &str, params: &ClusterParams, live: &Cluster) -> Cluster {
    let driver = live.status.as_ref().map(|status| status.driver.clone()).filter(|d| !d.is_empty());
    let status = ClusterStatus {
        driver: driver.unwrap_or_else(|| "imported".into()),
        api_endpoint: format!("https://{}", params.address),
        ca_cert: params.ca_cert.clone(),
        service_account_token_secret: format!("{CREDENTIAL_PREFIX}{id}"),
        ..ClusterStatus::default()
    };
    let mut desired = Cluster::new(id, Default::default());
    desired.status = Some(status);
    desired
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    fn tokens() -> Tokens {
        let owner = OwnerReference { kind: "ClusterRegistrationToken".into(), ..OwnerReference::default() };
        Tokens::new(Cache::fixed([Secret {
            metadata: ObjectMeta {
                namespace: Some("c-m-1".into()),
                name: Some("crt-token-default-token".into()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some([("token".to_owned(), ByteString("good".into()))].into()),
            ..Secret::default()
        }]))
    }

    fn headers(token: Option<&str>, params: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        token.map(|token| headers.insert(TOKEN_HEADER, token.parse().unwrap()));
        params.map(|params| headers.insert(PARAMS_HEADER, params.parse().unwrap()));
        headers
    }

    fn params(json: &str) -> String {
        STANDARD.encode(json)
    }

    #[test]
    fn a_known_token_with_an_endpoint_is_identified() {
        let json = r#"{"cluster":{"address":"10.43.0.1:443","token":"t","caCert":"Y2E="}}"#;
        let (cluster, params) = identify(&headers(Some("good"), Some(&params(json))), &tokens()).unwrap();
        assert_eq!(cluster, "c-m-1");
        assert_eq!(
            params,
            ClusterParams { address: "10.43.0.1:443".into(), token: "t".into(), ca_cert: "Y2E=".into() }
        );
    }

    /// access#12.
    #[test]
    fn access_check_12_a_missing_token_is_401_and_everything_else_is_400() {
        let full = params(r#"{"cluster":{"address":"a:1","token":"t","caCert":"Y2E="}}"#);
        let no_ca = params(r#"{"cluster":{"address":"a:1","token":"t","caCert":""}}"#);
        let node = params(r#"{"node":{}}"#);
        let cases = [
            (headers(None, Some(&full)), 401, "failed authentication"),
            (headers(Some("bad"), Some(&full)), 400, "cluster not found"),
            (headers(Some("good"), Some("%%%")), 400, "not base64"),
            (headers(Some("good"), Some(&params("{"))), 400, "not JSON"),
            (headers(Some("good"), Some(&node)), 400, "contains no cluster"),
            (headers(Some("good"), Some(&no_ca)), 400, "cluster.caCert is empty"),
            (headers(Some("good"), None), 400, "missing"),
        ];
        for (headers, status, text) in cases {
            let refusal = identify(&headers, &tokens()).unwrap_err();
            assert_eq!(refusal.status.as_u16(), status, "{}", refusal.text);
            assert!(refusal.text.contains(text), "{}", refusal.text);
        }
    }
}
