//! The certificate authority of the port is stored in a Secret of the external API. Agents trust it by checksum, so
//! all servers on that API must share it, including one on a new host with an empty data directory.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use drover_apiserver::auth::pki::Pki;
use drover_runtime::error::{found, is_already_exists};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};

use crate::datadir::write_private;

const NAMESPACE: &str = "cattle-system";
const NAME: &str = "drover-authority";
const FILES: [&str; 2] = ["ca.key", "ca.crt"];
const LIMIT: Duration = Duration::from_secs(30);

/// The authority of all servers on this API: the one in the Secret, or a new one if there is none.
pub async fn open(client: &Client, dir: &Path, now: Timestamp) -> anyhow::Result<Pki> {
    let doing = || format!("the Secret {NAMESPACE}/{NAME} with the authority of this server's port");
    tokio::time::timeout(LIMIT, agree(client, dir, now))
        .await
        .map_err(anyhow::Error::from)
        .and_then(|agreed| agreed)
        .with_context(|| format!("{} cannot be used", doing()))?;
    Pki::open(dir, now).context("failed to create certificates")
}

/// Makes the files and the Secret equal. The first server that creates the Secret decides.
async fn agree(client: &Client, dir: &Path, now: Timestamp) -> anyhow::Result<()> {
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let secret = match found(api.get(NAME).await)? {
        Some(secret) => secret,
        None => {
            // Created here if this is the first server.
            Pki::open(dir, now)?;
            let ours = ours(dir)?;
            match api.create(&PostParams::default(), &ours).await {
                Ok(_) => return Ok(()),
                Err(error) if is_already_exists(&error) => api.get(NAME).await?,
                Err(error) => return Err(error.into()),
            }
        }
    };
    let data = secret.data.unwrap_or_default();
    for name in FILES {
        let wanted = data.get(name).with_context(|| format!("it has no key {name:?}"))?;
        let path = dir.join(name);
        if std::fs::read(&path).ok().as_ref() != Some(&wanted.0) {
            write_private(&path, &wanted.0).with_context(|| format!("{}", path.display()))?;
        }
    }
    Ok(())
}

fn ours(dir: &Path) -> anyhow::Result<Secret> {
    let mut data = std::collections::BTreeMap::new();
    for name in FILES {
        let path = dir.join(name);
        let content = std::fs::read(&path).with_context(|| format!("{}", path.display()))?;
        data.insert(name.to_owned(), ByteString(content));
    }
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            namespace: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".into()),
        data: Some(data),
        ..Secret::default()
    })
}
