//! The API of the cluster that this node belongs to: the three requests that registration needs.

use std::{sync::Arc, time::Duration};

use http::Method;
use http_body_util::BodyExt as _;
use serde::de::IgnoredAny;
use serde_json::json;

use super::secrets::{ACCOUNT, ACCOUNT_ANNOTATION, List, NAMESPACE, TOKEN_SECRET, TOKEN_TYPE};
use crate::{
    host::Host,
    http as client,
    kube_api::{self, KubeApi},
    kubeconfig::Access,
};

const WATCH_SECONDS: u64 = 600;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// A request failed.
    #[error("{0}")]
    Request(#[from] kube_api::Error),
    /// The account whose token is needed does not exist yet.
    #[error("waiting for ServiceAccount {NAMESPACE}/{ACCOUNT}")]
    NoAccount,
}

/// A client of the cluster's API.
pub(super) struct Downstream {
    host: Arc<dyn Host>,
    api: KubeApi,
}

impl Downstream {
    /// Creates a client without connecting.
    pub(super) fn new(host: Arc<dyn Host>, access: &Access) -> Result<Self, Error> {
        // The API server runs on this node, so no proxy is used.
        let api = KubeApi::new(host.clone(), access, false, false)?.without_proxy();
        Ok(Self { host, api })
    }

    /// All Secrets of the namespace, which may not exist.
    pub(super) async fn secrets(&self) -> Result<List, Error> {
        Ok(self.api.get(&secrets()).await?)
    }

    /// Waits until a Secret of the namespace changes after this revision. It can return without a change.
    pub(super) async fn changed(&self, revision: &str) -> Result<(), Error> {
        let seconds = WATCH_SECONDS + self.host.random() % WATCH_SECONDS;
        let path = format!("{}?watch=true&resourceVersion={revision}&timeoutSeconds={seconds}", secrets());
        let mut body = match self.api.watch(&path).await {
            Err(error) if error.code() == Some(410) => return Ok(()),
            other => other?,
        };
        // The content of the event does not matter, because the Secrets are listed again.
        let silence = Duration::from_secs(seconds + 30);
        let failed = match tokio::time::timeout(silence, body.frame()).await {
            Err(_) => client::Error::Timeout(silence),
            Ok(Some(Err(error))) => error.into(),
            Ok(None | Some(Ok(_))) => return Ok(()),
        };
        Err(kube_api::Error::from(failed).into())
    }

    /// Creates the account's token Secret; the cluster fills it in.
    pub(super) async fn make_token(&self) -> Result<(), Error> {
        // The cluster would delete the Secret at once if its account did not exist.
        let account = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}");
        match self.api.get::<IgnoredAny>(&account).await {
            Err(error) if error.code() == Some(404) => return Err(Error::NoAccount),
            other => other?,
        };
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": TOKEN_TYPE,
            "metadata": {
                "name": TOKEN_SECRET, "namespace": NAMESPACE, "annotations": {ACCOUNT_ANNOTATION: ACCOUNT},
            },
        });
        match self.api.send::<IgnoredAny>(Method::POST, &secrets(), secret.to_string().into()).await {
            // Another control plane node created it first.
            Err(error) if error.code() == Some(409) => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

fn secrets() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets")
}
