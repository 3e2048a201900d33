//! The addresses of the server: ports that can be closed and reopened, and pipes.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use drover_apiserver::auth::pki::{ServingCertificate, server_config};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinHandle,
};

use super::Api;

/// All listeners.
pub(super) struct Doors {
    doors: Mutex<Vec<Door>>,
    down: AtomicBool,
    /// Connections end when it changes.
    cut: watch::Sender<u64>,
    knocks: AtomicUsize,
}

struct Door {
    address: SocketAddr,
    tls: Arc<ServerConfig>,
    /// Keeps the port while it is closed, so that connections are refused and no other process gets it.
    _place: TcpSocket,
    listening: Option<JoinHandle<()>>,
}

impl Default for Doors {
    fn default() -> Self {
        Self {
            doors: Mutex::default(),
            down: AtomicBool::new(false),
            cut: watch::Sender::new(0),
            knocks: AtomicUsize::new(0),
        }
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        for door in self.doors.lock().unwrap().iter_mut() {
            door.shut();
        }
    }
}

impl Door {
    fn open(&mut self, api: &Api) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.address).unwrap();
        self.listening =
            Some(tokio::spawn(accept(socket.listen(1024).unwrap(), self.tls.clone(), api.clone())));
    }

    fn shut(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
        }
    }
}

async fn accept(listener: TcpListener, tls: Arc<ServerConfig>, api: Api) {
    while let Ok((stream, _)) = listener.accept().await {
        api.inner.doors.knocks.fetch_add(1, Ordering::SeqCst);
        let _ = stream.set_nodelay(true);
        let (api, acceptor) = (api.clone(), tokio_rustls::TlsAcceptor::from(tls.clone()));
        tokio::spawn(async move {
            let stream = stream.into_std().unwrap();
            let handle = stream.try_clone().unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            if let Ok(stream) = acceptor.accept(stream).await
                && api.serve(stream).await.is_err()
            {
                // Reset instead of closed: data in flight is lost.
                let _ = socket2::SockRef::from(&handle).set_linger(Some(std::time::Duration::ZERO));
            }
        });
    }
}

impl Doors {
    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::SeqCst)
    }

    pub(super) fn set_down(&self, down: bool, api: &Api) {
        if self.down.swap(down, Ordering::SeqCst) == down {
            return;
        }
        for door in self.doors.lock().unwrap().iter_mut() {
            if down {
                door.shut();
            } else {
                door.open(api);
            }
        }
        if down {
            self.cut();
        }
    }

    pub(super) fn cut(&self) {
        self.cut.send_modify(|count| *count += 1);
    }
}

impl Api {
    /// Listens on a free port, with a certificate of its own CA.
    pub async fn listen(&self) -> SocketAddr {
        let names = ["127.0.0.1".to_owned()];
        let serving = self.inner.server.pki.serving(&names, jiff::Timestamp::now()).unwrap();
        let serving = ServingCertificate::new(&serving).unwrap();
        self.listen_tls(Arc::new(server_config(&self.inner.server.pki, serving).unwrap())).await
    }

    /// Listens on a free port, with any certificate.
    pub async fn listen_tls(&self, tls: Arc<ServerConfig>) -> SocketAddr {
        let mut tls = ServerConfig::clone(&tls);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let place = TcpSocket::new_v4().unwrap();
        place.set_reuseaddr(true).unwrap();
        place.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = place.local_addr().unwrap();
        let mut door = Door { address, tls: Arc::new(tls), _place: place, listening: None };
        door.open(self);
        self.inner.doors.doors.lock().unwrap().push(door);
        address
    }

    /// The number of connections that were opened.
    pub fn knocks(&self) -> usize {
        self.inner.doors.knocks.load(Ordering::SeqCst)
    }

    /// Serves one connection. An error means that it broke.
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<()> {
        let mut cut = self.inner.doors.cut.subscribe();
        let api = self.clone();
        let service = hyper::service::service_fn(move |request| {
            let api = api.clone();
            async move { api.answer(request).await }
        });
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service);
        tokio::select! {
            served = connection => served.map_err(io::Error::other),
            _ = cut.changed() => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}
