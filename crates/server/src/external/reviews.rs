//! Authentication and authorization by the external API, cached for a few seconds.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use drover_access::tokens::OWNER_GROUP_PREFIX;
use drover_apiserver::identity::{Attributes, Authorizer, Decision, UserInfo};
use drover_apiserver::status::Status;
use futures::future::BoxFuture;
use http::header;
use http::request::Parts;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// As long as kube-apiserver caches the results of its webhooks.
const BELIEVED: Duration = Duration::from_secs(10);
const REMEMBERED: usize = 4096;

/// Creates TokenReviews and SubjectAccessReviews.
pub struct Reviews {
    client: Client,
    /// By digest, so that no token is stored.
    users: Expiring<[u8; 32], UserInfo>,
    decisions: Expiring<[u8; 32], Decision>,
}

impl Reviews {
    pub fn new(client: Client) -> Self {
        Self { client, users: Expiring::default(), decisions: Expiring::default() }
    }

    /// The user behind the request's bearer token.
    pub async fn user(&self, request: &Parts) -> Result<UserInfo, Status> {
        let value = request.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            let mut status = Status::unauthorized();
            status.message =
                "no bearer token; client certificates of the Kubernetes API are not accepted here".into();
            return Err(status);
        };
        let digest = sha256(token.as_bytes());
        if let Some(user) = self.users.get(&digest) {
            return Ok(user);
        }
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let status = answered(api.create(&PostParams::default(), &review)).await?.status.unwrap_or_default();
        let user =
            status.user.filter(|_| status.authenticated == Some(true)).ok_or_else(Status::unauthorized)?;
        let mut groups = user.groups.unwrap_or_default();
        // These groups are assigned by Drover only: another authenticator must not grant access to clusters.
        groups.retain(|group| !group.starts_with(OWNER_GROUP_PREFIX));
        let user = UserInfo {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups,
            extra: user.extra.unwrap_or_default(),
        };
        self.users.put(digest, user.clone());
        Ok(user)
    }

    /// Whether a user may do something with a resource or path.
    pub async fn decide(&self, attributes: &Attributes) -> Result<Decision, Status> {
        let digest = sha256(format!("{attributes:?}").as_bytes());
        if let Some(decision) = self.decisions.get(&digest) {
            return Ok(decision);
        }
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let user = &attributes.user;
        let extra: BTreeMap<String, Vec<String>> = user.extra.clone();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: some(&user.name),
                uid: some(&user.uid),
                groups: Some(user.groups.clone()),
                extra: Some(extra).filter(|extra| !extra.is_empty()),
                non_resource_attributes: (!attributes.resource_request).then(|| NonResourceAttributes {
                    verb: some(&attributes.verb),
                    path: some(&attributes.path),
                }),
                resource_attributes: attributes.resource_request.then(|| ResourceAttributes {
                    verb: some(&attributes.verb),
                    group: some(&attributes.group),
                    version: some(&attributes.version),
                    resource: some(&attributes.resource),
                    subresource: some(&attributes.subresource),
                    namespace: some(&attributes.namespace),
                    name: some(&attributes.name),
                    ..ResourceAttributes::default()
                }),
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = answered(api.create(&PostParams::default(), &review)).await?.status.unwrap_or_default();
        let allowed = status.allowed && status.denied != Some(true);
        let decision = Decision { allowed, reason: status.reason.unwrap_or_default() };
        self.decisions.put(digest, decision.clone());
        Ok(decision)
    }
}

/// The same as an authorizer.
pub struct Authorized(pub super::External);

impl Authorizer for Authorized {
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Result<Decision, Status>> {
        Box::pin(self.0.reviews().decide(attributes))
    }
}

async fn answered<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Status> {
    match tokio::time::timeout(ANSWER_LIMIT, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => {
            tracing::warn!(%error, "failed to check permissions with the Kubernetes API");
            Err(Status::service_unavailable(
                "failed to check your permissions with the Kubernetes API; try again",
            ))
        }
        Err(_) => Err(Status::timeout("timed out checking your permissions with the Kubernetes API", 1)),
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Results that are valid for a while.
struct Expiring<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for Expiring<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Expiring<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let known = self.0.lock();
        known.get(key).filter(|(since, _)| since.elapsed() < BELIEVED).map(|(_, value)| value.clone())
    }

    fn put(&self, key: K, value: V) {
        let mut known = self.0.lock();
        if known.len() >= REMEMBERED {
            known.retain(|_, (since, _)| since.elapsed() < BELIEVED);
        }
        // Clear the cache rather than let it grow without bound.
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(key, (Instant::now(), value));
    }
}
