//! A simulated machine whose network is a table: names lead to sockets on loopback, and nowhere else.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use drover_agent::{
    config::Config,
    host::{Attr, BoxFuture, BoxIo, Host, MemoryHost, Program},
    image::Images,
};

pub struct Node {
    pub host: Arc<MemoryHost>,
    pub config: Config,
    network: Network,
}

#[derive(Clone, Default)]
struct Network {
    routes: Arc<Mutex<BTreeMap<String, SocketAddr>>>,
    dialled: Arc<Mutex<Vec<String>>>,
}

impl Program for Network {
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        let name = format!("{host}:{port}");
        self.dialled.lock().unwrap().push(name.clone());
        let route = self.routes.lock().unwrap().get(&name).copied();
        let own = (host == "127.0.0.1").then(|| SocketAddr::from(([127, 0, 0, 1], port)));
        Box::pin(async move {
            let Some(address) = route.or(own) else { return Err(io::ErrorKind::ConnectionRefused.into()) };
            Ok(Box::new(tokio::net::TcpStream::connect(address).await?) as BoxIo)
        })
    }
}

impl Node {
    pub fn new() -> Self {
        let network = Network::default();
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 7, network.clone()));
        let config = Config {
            work_directory: "/var/lib/rancher/agent/work".into(),
            images_directory: "/var/lib/rancher/agent/images".into(),
            connection_info_file: "/var/lib/rancher/agent/connection.json".into(),
            remote_enabled: true,
            ..Config::default()
        };
        Self { host, config, network }
    }

    /// Routes connections to `name` (host:port) to this address.
    pub fn route(&self, name: &str, to: SocketAddr) {
        self.network.routes.lock().unwrap().insert(name.to_owned(), to);
    }

    pub fn dialled(&self) -> Vec<String> {
        self.network.dialled.lock().unwrap().clone()
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = Path::new(path);
        self.host.make_dirs(path.parent().unwrap(), 0o755).unwrap();
        self.host.replace(path, text.as_bytes(), Attr { mode: 0o600, owner: Some((0, 0)) }).unwrap();
    }

    pub fn registries(&self, text: &str) {
        self.write("/etc/rancher/agent/registries.yaml", text);
    }

    /// Stages into an empty directory.
    pub async fn stage(&self, image: &str) -> Result<(), String> {
        let into = Path::new("/stage");
        if self.host.stat(into).is_ok() {
            self.host.remove_tree(into).unwrap();
        }
        self.host.make_dirs(into, 0o755).unwrap();
        let host: Arc<dyn Host> = self.host.clone();
        Images::new(&self.config).stage(&host, image, into).await.map_err(|error| error.to_string())
    }

    pub fn staged(&self, name: &str) -> Option<String> {
        self.host
            .read(&Path::new("/stage").join(name))
            .ok()
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The file names in the cache of layers.
    pub fn cached(&self) -> Vec<String> {
        let names =
            self.host.list(Path::new("/var/lib/rancher/agent/cache/blobs/sha256")).unwrap_or_default();
        names.into_iter().filter(|name| name != "recent").collect()
    }
}
