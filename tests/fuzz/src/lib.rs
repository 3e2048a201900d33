//! The fuzz targets: one function per parser of untrusted input. Each panics if a guarantee is violated.
//!
//! `fuzz/` wraps them for cargo-fuzz. The tests of this crate run them with seeds and some thousand mutations, so that
//! every run of the test suite exercises them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod install;
pub mod mutate;
mod patches;
mod registration;
pub mod seeds;
mod tunnel;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use drover_agent::config::{Config, Connection};
use drover_agent::host::{Attr, Host, Kind, MemoryHost, Program};
use drover_agent::image::registry::Origin;
use drover_agent::image::registry::challenge::Challenge;
use drover_agent::image::registry::registries::{Auth, Registries};
use drover_agent::image::{self, Budget, Images};
use drover_agent::kubeconfig;
use drover_image::manifest::{self, Platform};
use drover_image::{Digest, Reference, is_repository, read_layer};
use drover_plan::{PeriodicInstructionOutput, Plan};

pub use install::install_args;
pub use patches::{applied, json_patches, merge_patches, strategic_patches};
pub use registration::registration_headers;
pub use tunnel::{tunnel_frame, tunnel_session, tunnel_upgrade};
pub use watch::watch_lines;

/// A plan: it round-trips, and writing its files does not panic.
pub fn plan_json(data: &[u8]) {
    let Ok(plan) = drover_plan::from_slice::<Plan>(data) else { return };
    let written = drover_plan::to_vec(&plan).unwrap();
    let again: Plan = drover_plan::from_slice(&written).expect("written output can be read");
    assert_eq!(drover_plan::to_vec(&again).unwrap(), written, "the second output is equal to the first");
    let host = machine();
    let _ = drover_agent::apply::files::apply(&host, &plan.files);
}

/// The compressed maps of the plan secret: malformed ones are empty, others round-trip.
pub fn gzip_map(data: &[u8]) {
    use drover_agent::remote::gzip_json::{decode, encode};
    let data = data.to_vec();
    let outputs: BTreeMap<String, serde_json::Value> = decode(Some(&data));
    assert_eq!(decode::<BTreeMap<String, serde_json::Value>>(Some(&encode(&outputs))), outputs);
    let periodic: BTreeMap<String, PeriodicInstructionOutput> = decode(Some(&data));
    let written = encode(&periodic);
    let again: BTreeMap<String, PeriodicInstructionOutput> = decode(Some(&written));
    assert_eq!(encode(&again), written, "the second output is equal to the first");
}

/// registries.yaml: whatever the mirrors are, the registry in the image's name is tried last.
pub fn registries(data: &[u8]) {
    let Ok(registries) = Registries::parse(data) else { return };
    for name in ["rancher/system-agent-installer-k3s:v1", "r.example.com:5000/a/b", "localhost/a", "busybox"]
    {
        let image = Reference::parse(name).unwrap();
        let endpoints = registries.endpoints(&image, None);
        let (last, mirrors) = endpoints.split_last().expect("there is always an endpoint");
        assert!(last.origin == Origin::Name && last.repository == image.repository);
        for mirror in mirrors {
            assert_eq!(mirror.origin, Origin::Mirror);
            assert!(is_repository(&mirror.repository), "{:?}", mirror.repository);
            assert!(mirror.url.path.starts_with('/') && !mirror.url.host.is_empty());
        }
        let _ = registries.config(&last.url.authority()).auth.and_then(|auth| auth.basic());
    }
}

/// Responses of a registry: challenges, manifests, and names in them.
pub fn registry_answers(data: &[u8]) {
    let here = Platform { os: "linux", architecture: "amd64" };
    if let Ok(manifest::Document::Image { layers, .. }) = manifest::parse(data, here) {
        assert!(layers.iter().all(|layer| layer.size <= manifest::LAYER_LIMIT));
        assert!(layers.iter().map(|layer| layer.size).sum::<u64>() <= manifest::IMAGE_LIMIT);
    }
    let _ = manifest::foreign_platform(data, here);
    let text = String::from_utf8_lossy(data);
    let _ = Challenge::parse(&text);
    let _ = Auth::decode(&text);
    if let Some(digest) = Digest::parse(&text) {
        assert!(
            digest.hex().bytes().all(|byte| byte.is_ascii_alphanumeric()),
            "digests are used as file names"
        );
    }
    if let Some(image) = Reference::parse(&text) {
        assert_eq!(Reference::parse(&image.text()), Some(image), "the full name means the same");
    }
}

/// A layer, compressed or not: it changes nothing outside of the folder, and its size is limited.
pub fn tar_layer(data: &[u8]) {
    let host = guarded();
    let into = Path::new("/stage/in");
    if let Ok(layer) = read_layer(data) {
        let _ = image::unpack_layer(&host, layer, into, &mut Budget::of(1 << 20, 200));
    }
    assert_unharmed(&host);
    let mut left = 1 << 20;
    measure(&host, into, &mut left);
}

/// An archive in the images directory: as `docker save` writes it, or an OCI layout.
pub fn image_archive(data: &[u8]) {
    let host = Arc::new(guarded());
    host.make_dirs(Path::new("/images"), 0o755).unwrap();
    host.replace(Path::new("/images/a.tar"), data, PRIVATE).unwrap();
    let config = Config {
        images_directory: "/images".into(),
        work_directory: "/stage/work".into(),
        ..Config::default()
    };
    let machine: Arc<dyn Host> = host.clone();
    let images = Images::new(&config);
    watch::block_on(async move {
        // Archives are read at once; an image that is not in them would be waited for at a registry.
        tokio::select! {
            biased;
            _ = images.stage(&machine, seeds::IMAGE, Path::new("/stage/in")) => {}
            () = std::future::ready(()) => {}
        }
    });
    host.remove_tree(Path::new("/images")).unwrap();
    let _ = host.remove_tree(Path::new("/stage/cache"));
    assert_unharmed(&host);
}

/// The agent's configuration files; the connection comes from a server.
pub fn config_files(data: &[u8]) {
    let host = machine();
    host.make_dirs(Path::new("/e"), 0o755).unwrap();
    for path in ["/e/config.yaml", "/e/config.json"].map(Path::new) {
        host.replace(path, data, PRIVATE).unwrap();
        if let Ok(config) = Config::load(&host, path) {
            assert!(config.local_enabled || config.remote_enabled, "at least one mode is enabled");
            let _ = (config.var_dir(), config.instruction_timeout());
        }
        if let Ok(connection) = Connection::load(&host, path) {
            for text in [&connection.kube_config, &connection.namespace, &connection.secret_name] {
                assert!(!text.is_empty());
            }
            kubeconfig(connection.kube_config.as_bytes());
        }
    }
}

/// A kubeconfig: it yields a URL or an error, and no error contains a credential.
pub fn kubeconfig(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match kubeconfig::parse(text) {
        Ok(access) => {
            assert!(access.server.starts_with("http://") || access.server.starts_with("https://"));
            assert!(access.token.is_none_or(|token| !token.is_empty()));
        }
        Err(error) => assert!(!error.to_string().contains(seeds::CREDENTIAL), "{error}"),
    }
}

const CANARY: &str = "/secret/canary";
const PRIVATE: Attr = Attr { mode: 0o600, owner: None };

/// A host with a folder to unpack into, and a file outside of it.
fn guarded() -> MemoryHost {
    let host = machine();
    host.make_dirs(Path::new("/secret"), 0o755).unwrap();
    host.replace(Path::new(CANARY), b"untouched", PRIVATE).unwrap();
    host.make_dirs(Path::new("/stage/in"), 0o755).unwrap();
    host
}

fn assert_unharmed(host: &MemoryHost) {
    assert_eq!(host.read(Path::new(CANARY)).unwrap(), b"untouched");
    assert_eq!(host.list(Path::new("/")).unwrap(), ["secret", "stage"]);
    assert_eq!(host.list(Path::new("/stage")).unwrap(), ["in"]);
    assert_eq!(host.list(Path::new("/secret")).unwrap(), ["canary"]);
}

fn measure(host: &MemoryHost, path: &Path, left: &mut u64) {
    for name in host.list(path).unwrap() {
        let path = path.join(name);
        let stat = host.stat(&path).unwrap();
        match stat.kind {
            Kind::Directory => measure(host, &path, left),
            _ => *left = left.checked_sub(stat.len).expect("written bytes are within the budget"),
        }
    }
}

struct Nothing;

impl Program for Nothing {}

/// A host with an empty disk.
fn machine() -> MemoryHost {
    // Its clock is tokio's, which also works outside of a runtime.
    MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, Nothing)
}
