//! An external Kubernetes API: kube-apiserver with etcd, reached with a kubeconfig.
//!
//! * [`External::connect`]: checks that the API answers, is new enough and grants the required permissions.
//! * [`passthrough`]: requests of users are forwarded with their own credentials, never with the manager's.
//! * [`reviews`]: authentication and authorization of callers by the API.
//! * [`authority`]: the certificate authority of the port, stored in the API, so that all servers share it.
//! * [`leader`]: leader election; `standby` answers requests until this server is the leader.

pub mod authority;
pub mod leader;
pub mod passthrough;
pub mod reviews;
pub(crate) mod standby;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};
use drover_access::downstream::{RequestBody, boxed};
use drover_access::tokens::KubeconfigAuthenticator;
use drover_apiserver::identity::{Attributes, Authenticator as _, UserInfo};
use drover_apiserver::status::{GroupName, Status};
use drover_https::Incoming;
use drover_runtime::metrics::Requests;
use http::request::Parts;
use http::{Request, Response, Uri};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use passthrough::Passthrough;
use reviews::Reviews;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The first version in which `managedBy` of a Job is enabled by default.
const OLDEST: (u32, u32) = (1, 32);

/// The API. Clones share it.
#[derive(Clone)]
pub struct External {
    inner: Arc<Inner>,
}

struct Inner {
    url: Uri,
    client: Client,
    requests: Requests,
    passthrough: Passthrough,
    reviews: Reviews,
    /// Authenticates the tokens of cluster kubeconfigs, once their Secrets are watched.
    kubeconfigs: OnceLock<KubeconfigAuthenticator>,
}

impl External {
    /// Reads the kubeconfig and checks the API: its version, and the permissions of the user.
    pub async fn connect(path: &Path) -> anyhow::Result<Self> {
        let config = read_kubeconfig(path).await?;
        let url = config.cluster_url.clone();
        let passthrough = Passthrough::new(&config)
            .with_context(|| format!("the kubeconfig {} cannot be used", path.display()))?;
        let requests = Requests::new(url.authority().map(ToString::to_string).unwrap_or_default());
        let client = ClientBuilder::try_from(config)
            .with_context(|| format!("the kubeconfig {} cannot be used", path.display()))?
            .with_layer(&requests)
            .build();
        check_version(&client, &url).await?;
        check_rights(&client, &url, path).await?;
        let reviews = Reviews::new(client.clone());
        let inner = Inner { url, client, requests, passthrough, reviews, kubeconfigs: OnceLock::new() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A client with the permissions of the kubeconfig.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Counts requests with the permissions of the kubeconfig.
    pub fn requests(&self) -> &Requests {
        &self.inner.requests
    }

    pub fn url(&self) -> &Uri {
        &self.inner.url
    }

    /// The authorizer of the API.
    pub fn reviews(&self) -> &Reviews {
        &self.inner.reviews
    }

    /// Adds the authenticator for tokens of cluster kubeconfigs.
    pub(crate) fn recognise(&self, kubeconfigs: KubeconfigAuthenticator) {
        // Set once, at start.
        let _ = self.inner.kubeconfigs.set(kubeconfigs);
    }

    /// The caller of a request for a path outside the API.
    pub async fn authenticate(&self, request: &Parts) -> Result<UserInfo, Status> {
        if let Some(kubeconfigs) = self.inner.kubeconfigs.get()
            && let Some(user) = kubeconfigs.authenticate(request).await?
        {
            return Ok(user);
        }
        self.inner.reviews.user(request).await
    }

    /// The caller of a request for one of Drover's paths, if the API's RBAC permits it.
    pub async fn admit(&self, request: &Parts) -> Result<UserInfo, Status> {
        let user = self.authenticate(request).await?;
        let attributes = Attributes {
            user: user.clone(),
            verb: request.method.as_str().to_ascii_lowercase(),
            path: request.uri.path().to_owned(),
            ..Attributes::default()
        };
        let decision = self.inner.reviews.decide(&attributes).await?;
        if decision.allowed {
            return Ok(user);
        }
        Err(Status::forbidden(GroupName { group: "", name: "" }, "", &attributes.denial(&decision.reason)))
    }

    /// The paths that are answered: health, and those that are forwarded to the API.
    pub(crate) fn paths() -> Vec<&'static str> {
        ["/healthz", "/livez", "/readyz"].into_iter().chain(Passthrough::paths()).collect()
    }

    /// Forwards a request to the API, or answers for the server's own health.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<RequestBody> {
        match request.uri().path() {
            "/healthz" | "/livez" => crate::front::text(http::StatusCode::OK, "ok"),
            "/readyz" => self.readiness().await,
            _ => self.inner.passthrough.answer(request.map(boxed)).await,
        }
    }

    /// Ready while the API is, because nothing works without it.
    async fn readiness(&self) -> Response<RequestBody> {
        let asked = tokio::time::timeout(ANSWER_LIMIT, self.inner.client.apiserver_version()).await;
        let why = match asked {
            Ok(Ok(_)) => return crate::front::text(http::StatusCode::OK, "ok"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "timed out".to_owned(),
        };
        let text = format!("the Kubernetes API at {} does not answer: {why}", self.inner.url);
        crate::front::text(http::StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

/// Reads the current context of a kubeconfig. An error is one sentence with the name of the file.
pub async fn read_kubeconfig(path: &Path) -> anyhow::Result<Config> {
    let shown = path.display();
    if let Err(error) = std::fs::metadata(path)
        && error.kind() == std::io::ErrorKind::NotFound
    {
        bail!("there is no kubeconfig at {shown}");
    }
    // A YAML parser quotes what it could not read, which may be a key or token.
    let first_line = |error: &dyn std::fmt::Display| {
        error.to_string().lines().next().unwrap_or_default().trim_end_matches(':').to_owned()
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| match &error {
        KubeconfigError::ReadConfig(source, _) => {
            anyhow::anyhow!("the kubeconfig {shown} cannot be read: {source}")
        }
        _ => anyhow::anyhow!("the kubeconfig {shown} cannot be read: {}", first_line(&error)),
    })?;
    let context = kubeconfig.current_context.clone().unwrap_or_default();
    match Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await {
        Ok(config) => Ok(config),
        Err(KubeconfigError::CurrentContextNotSet) => {
            bail!(
                "the kubeconfig {shown} has no current-context; set one with kubectl config use-context NAME"
            )
        }
        Err(KubeconfigError::LoadContext(_)) => {
            bail!(
                "the kubeconfig {shown} has no context {context:?}, which is its current-context; set another one with kubectl config use-context NAME"
            )
        }
        Err(error) => Err(error).with_context(|| format!("the kubeconfig {shown} cannot be used")),
    }
}

async fn check_version(client: &Client, url: &Uri) -> anyhow::Result<()> {
    let version = match tokio::time::timeout(ANSWER_LIMIT, client.apiserver_version()).await {
        Err(_) => bail!("the Kubernetes API at {url} does not answer"),
        Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
            bail!("the Kubernetes API at {url} rejected the credentials of the kubeconfig")
        }
        Ok(Err(error)) => {
            return Err(error).with_context(|| format!("the Kubernetes API at {url} does not answer"));
        }
        Ok(Ok(version)) => version,
    };
    let number = |text: &str| text.trim_end_matches('+').parse::<u32>().unwrap_or(u32::MAX);
    let found = (number(&version.major), number(&version.minor));
    if found < OLDEST {
        let (major, minor) = OLDEST;
        bail!(
            "the Kubernetes API at {url} has version {}; v{major}.{minor} or newer is required, because older versions ignore managedBy of Jobs",
            version.git_version
        );
    }
    Ok(())
}

/// The permissions that the controllers require, checked before anything is written.
const NEEDED: [(&str, &str, &str); 9] = [
    ("patch", "apiextensions.k8s.io", "customresourcedefinitions"),
    ("patch", "", "namespaces"),
    ("update", "", "secrets"),
    ("create", "rbac.authorization.k8s.io", "roles"),
    ("create", "batch", "jobs"),
    ("create", "coordination.k8s.io", "leases"),
    ("create", "authentication.k8s.io", "tokenreviews"),
    ("create", "authorization.k8s.io", "subjectaccessreviews"),
    ("patch", "cluster.x-k8s.io", "machines"),
];

async fn check_rights(client: &Client, url: &Uri, path: &Path) -> anyhow::Result<()> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = vec![];
    for (verb, group, resource) in NEEDED {
        let attributes = ResourceAttributes {
            verb: Some(verb.into()),
            group: Some(group.into()),
            resource: Some(resource.into()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let params = PostParams::default();
        let answer = tokio::time::timeout(ANSWER_LIMIT, api.create(&params, &review)).await;
        let answer = answer.with_context(|| format!("the Kubernetes API at {url} does not answer"))?;
        let answer = answer.with_context(|| {
            format!(
                "failed to check the permissions of the user of the kubeconfig {} at {url}",
                path.display()
            )
        })?;
        if !answer.status.is_some_and(|status| status.allowed) {
            let dot = if group.is_empty() { "" } else { "." };
            missing.push(format!("{verb} {resource}{dot}{group}"));
        }
    }
    if !missing.is_empty() {
        bail!(
            "the user of the kubeconfig {} lacks permissions at {url}: {}; bind it to the ClusterRole cluster-admin",
            path.display(),
            missing.join(", ")
        );
    }
    Ok(())
}
