//! The state of the tunnel, in the log (one line per change) and in `drover-agent status`.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::{
    host::Host,
    status::{self, Board},
};

/// See the module.
pub(super) struct TunnelStatus {
    host: Arc<dyn Host>,
    board: Arc<Board>,
    current: Mutex<Current>,
}

/// The state of the tunnel, if there is a server to connect to.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Connected to this server.
    Open(String),
    /// Connecting for the first time.
    Opening(String),
    /// Not connected, with the reason.
    Closed(String, String),
}

#[derive(Default)]
struct Current {
    waiting: Option<(String, Timestamp)>,
    tunnel: Option<(State, Timestamp)>,
}

impl TunnelStatus {
    pub(super) fn new(host: Arc<dyn Host>, board: Arc<Board>) -> Self {
        Self { host, board, current: Mutex::default() }
    }

    /// Sets what it is waiting for before it can connect or verify the target.
    pub(super) fn set_waiting(&self, text: Option<String>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.waiting.as_ref().map(|(text, _)| text) == text.as_ref() {
            return;
        }
        match (&text, &current.tunnel) {
            (Some(text), _) => tracing::info!("tunnel: {text}"),
            (None, Some((State::Open(_), _))) => tracing::info!("tunnel: the previous problem is resolved"),
            // The next call logs the state of the connection.
            (None, _) => {}
        }
        current.waiting = text.map(|text| (text, self.host.now()));
        self.show(&current);
    }

    /// Sets the state of the tunnel; `None` if there is no server to connect to.
    pub(super) fn set_state(&self, state: Option<State>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.tunnel.as_ref().map(|(state, _)| state) == state.as_ref() {
            return;
        }
        match &state {
            Some(State::Open(server)) => tracing::info!("tunnel: connected to {server}"),
            Some(State::Opening(_)) => {}
            Some(State::Closed(server, why)) => {
                tracing::warn!("tunnel: not connected to {server}, retrying: {why}");
            }
            None => tracing::info!("tunnel: closed, because there is no longer a server to connect to"),
        }
        current.tunnel = state.map(|state| (state, self.host.now()));
        self.show(&current);
    }

    fn show(&self, current: &Current) {
        let waiting = current.waiting.as_ref().map(|(text, since)| (text.as_str(), *since));
        let shown = match (&current.tunnel, waiting) {
            (Some((State::Open(server), since)), None) => Some((format!("connected to {server}"), *since)),
            (Some((State::Open(server), since)), Some((waiting, _))) => {
                Some((format!("connected to {server}, but {waiting}"), *since))
            }
            (Some((State::Opening(server), since)), _) => Some((format!("connecting to {server}"), *since)),
            (Some((State::Closed(server, why), since)), _) => {
                Some((format!("not connected to {server}: {why}"), *since))
            }
            (None, Some((waiting, since))) => Some((waiting.to_owned(), since)),
            (None, None) => None,
        };
        let shown = shown.map(|(state, since)| status::Tunnel { state, since: format!("{since:.0}") });
        self.board.show(|status| status.tunnel = shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{MemoryHost, testing::NoProgram};
    use std::path::Path;

    #[tokio::test(start_paused = true)]
    async fn the_status_contains_the_server_and_the_time_of_the_change() {
        let host = Arc::new(MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, NoProgram));
        let var = Path::new("/var/lib/agent");
        let status = TunnelStatus::new(host.clone(), Arc::new(Board::new(host.clone(), var)));
        let shown = || {
            let status = serde_json::from_slice(&host.read(&status::path(var)).unwrap()).unwrap();
            let text = status::render(&status);
            text.lines().find(|line| line.starts_with("tunnel")).unwrap_or_default().to_owned()
        };
        status.set_waiting(Some("waiting for x".into()));
        assert_eq!(shown(), "tunnel        waiting for x (since 2026-01-01T00:00:00Z)");
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        status.set_waiting(None);
        status.set_state(Some(State::Open("m:8443".into())));
        assert_eq!(shown(), "tunnel        connected to m:8443 (since 2026-01-01T00:00:05Z)");
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        status.set_waiting(Some("cannot read".into()));
        assert_eq!(
            shown(),
            "tunnel        connected to m:8443, but cannot read (since 2026-01-01T00:00:05Z)"
        );
        let writes = host.writes();
        status.set_waiting(Some("cannot read".into()));
        status.set_state(Some(State::Open("m:8443".into())));
        assert_eq!(host.writes(), writes, "no change, no write");
        status.set_state(Some(State::Closed("m:8443".into(), "broken".into())));
        assert_eq!(shown(), "tunnel        not connected to m:8443: broken (since 2026-01-01T00:00:10Z)");
    }
}
