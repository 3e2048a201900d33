//! Pulls one image from the first endpoint that has it into the cache.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use drover_image::{
    Digest, Reference,
    manifest::{self, Blob, Document, Platform},
};

use super::{
    Endpoint, Origin,
    cache::Cache,
    download,
    registries::{Registries, Tls},
    session::{Failure, Fixed, Session},
};
use crate::{
    config::{Config, Connection},
    host::{Host, offload},
    http::{Url, tls},
    kubeconfig::{self, Access},
};

const DEFAULT_FILE: &str = "/etc/rancher/agent/registries.yaml";
/// The files of the distributions: a node that can pull pods can also pull installers.
const OTHER_FILES: [&str; 2] = ["/etc/rancher/rke2/registries.yaml", "/etc/rancher/k3s/registries.yaml"];

/// No endpoint had the image: the endpoints with their errors.
#[derive(Debug)]
pub(in crate::image) struct Refusal(pub(in crate::image) Vec<String>);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

/// Pulls images.
pub(in crate::image) struct Puller {
    files: Vec<PathBuf>,
    /// The connection file, if images are also pulled from the management plane.
    connection: Option<PathBuf>,
    pub(in crate::image) cache: Cache,
    pub(in crate::image) platform: Platform,
}

impl Puller {
    pub(in crate::image) fn new(config: &Config, cache: Cache) -> Self {
        let own = Some(config.agent_registries_file.clone()).filter(|path| !path.as_os_str().is_empty());
        let own = own.unwrap_or_else(|| DEFAULT_FILE.into());
        let files = std::iter::once(own).chain(OTHER_FILES.map(PathBuf::from)).collect();
        let connection = config.images_from_server && config.remote_enabled;
        let connection = connection.then(|| config.connection_info_file.clone());
        Self { files, connection, cache, platform: Platform::here() }
    }

    /// Downloads all layers of the image into the cache; returns them bottom first.
    pub(in crate::image) async fn pull(
        &self,
        host: &Arc<dyn Host>,
        image: &Reference,
    ) -> Result<Vec<Blob>, Refusal> {
        let registries = self.registries(host).await.map_err(|error| Refusal(vec![error]))?;
        for warning in &registries.warnings {
            tracing::warn!("registries.yaml: {warning}");
        }
        let manager = self.manager(&**host);
        let endpoint = manager.as_ref().map(|(url, _)| manager_endpoint(url, image));
        let mut refusals = Vec::new();
        for endpoint in registries.endpoints(image, endpoint) {
            let name = endpoint.to_string();
            let fixed = match (&manager, endpoint.origin) {
                (Some((_, access)), Origin::Manager) => Some(access),
                _ => None,
            };
            match self.from(host, &registries, endpoint, fixed, image).await {
                Ok(layers) => {
                    tracing::info!("pulled {} from {name}", image.text());
                    return Ok(layers);
                }
                Err(failure) => {
                    tracing::warn!("{name}: {}", failure.text);
                    if failure.local {
                        return Err(Refusal(vec![failure.text]));
                    }
                    refusals.push(format!("{name}: {}", failure.text));
                }
            }
        }
        Err(Refusal(refusals))
    }

    async fn from(
        &self,
        host: &Arc<dyn Host>,
        registries: &Registries,
        endpoint: Endpoint,
        manager: Option<&Access>,
        image: &Reference,
    ) -> Result<Vec<Blob>, Failure> {
        let fixed = manager.map(|access| manager_tls(&**host, access)).transpose()?.flatten();
        let mut session = Session::new(host, registries, endpoint, fixed)?;
        let digest = image.digest.as_deref().and_then(Digest::parse);
        let bytes = download::manifest(&**host, &mut session, &image.tag, digest.as_ref()).await?;
        let mut document = manifest::parse(&bytes, self.platform).map_err(Failure::permanent)?;
        if let Document::Index(blob) = &document {
            let bytes = download::manifest(&**host, &mut session, "", Some(&blob.digest)).await?;
            document = manifest::parse(&bytes, self.platform).map_err(Failure::permanent)?;
        }
        let Document::Image { config, layers } = document else {
            return Err(Failure::permanent("an index that refers to another index is not supported"));
        };
        let bytes = download::config(&**host, &mut session, &config).await?;
        if let Some(foreign) = manifest::foreign_platform(&bytes, self.platform) {
            tracing::warn!("{} is for platform {foreign}, this host is {}", image.text(), self.platform);
        }
        for blob in &layers {
            download::layer(host, &mut session, &self.cache, blob).await?;
        }
        Ok(layers)
    }

    /// Reads the first existing file.
    async fn registries(&self, host: &Arc<dyn Host>) -> Result<Registries, String> {
        let (inner, files) = (host.clone(), self.files.clone());
        let read = offload(&**host, move || {
            for path in files {
                match inner.read(&path) {
                    Ok(text) => return Registries::parse(&text).map_err(|why| named(&path, &why)),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(named(&path, &error.to_string())),
                }
            }
            Ok(Registries::default())
        });
        read.await.unwrap_or_else(|| Err("reading registries.yaml was interrupted".into()))
    }

    /// The management plane in the connection file.
    fn manager(&self, host: &dyn Host) -> Option<(Url, Access)> {
        let path = self.connection.as_ref()?;
        let access = Connection::load(host, path).map_err(|error| error.to_string()).and_then(|connection| {
            kubeconfig::parse(&connection.kube_config).map_err(|error| error.to_string())
        });
        let found = access.and_then(|access| match Endpoint::url(&access.server) {
            Some(mut url) => {
                if url.path != "/v2" {
                    url.path.push_str("/v2");
                }
                Ok((url, access))
            }
            None => Err("the server's URL is not supported".to_owned()),
        });
        found.map_err(|error| tracing::warn!("not pulling images from the server: {error}")).ok()
    }
}

fn named(path: &Path, why: &str) -> String {
    format!("{}: {why}", path.display())
}

fn manager_endpoint(url: &Url, image: &Reference) -> Endpoint {
    Endpoint {
        url: url.clone(),
        repository: image.repository.clone(),
        // No `ns` if the image's registry is the server itself.
        ns: (url.authority() != image.registry).then(|| image.namespace().to_owned()),
        origin: Origin::Manager,
        auth: None,
        tls: Tls::default(),
    }
}

/// The TLS options of the agent's connection for its plan: the CA of the connection file, and unless verification is
/// strict, also the system's CAs.
fn manager_tls(host: &dyn Host, access: &Access) -> Result<Fixed, Failure> {
    if !access.server.starts_with("https://") {
        return Ok(None);
    }
    let strict = host
        .env()
        .iter()
        .rev()
        .find(|(name, _)| name == "CATTLE_AGENT_STRICT_VERIFY")
        .is_some_and(|(_, value)| value.eq_ignore_ascii_case("true"));
    let trust = match (access.trust(strict, false), &access.ca) {
        (tls::Trust::Only(ca), _) if !strict => tls::Trust::System(ca),
        (trust, _) => trust,
    };
    let config = tls::client_config(trust, None).map_err(|error| Failure::permanent(error.to_string()))?;
    Ok(Some((config, access.tls_server_name.clone())))
}
