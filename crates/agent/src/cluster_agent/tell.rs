//! How the tunnel is, for people: one log line per change of state, and a line of `drover-agent status`.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::{
    host::Host,
    status::{self, Board},
};

/// See the module.
pub(super) struct Tell {
    host: Arc<dyn Host>,
    board: Arc<Board>,
    said: Mutex<Said>,
}

/// How the tunnel itself is, if there is something to connect to.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Open, to this server.
    Open(String),
    /// Being opened for the first time.
    Opening(String),
    /// Not open, for this reason.
    Closed(String, String),
}

#[derive(Default)]
struct Said {
    waits: Option<(String, Timestamp)>,
    tunnel: Option<(State, Timestamp)>,
}

impl Tell {
    pub(super) fn new(host: Arc<dyn Host>, board: Arc<Board>) -> Self {
        Self { host, board, said: Mutex::default() }
    }

    /// What it waits for before it can connect, or to be sure that it still should.
    pub(super) fn waits(&self, text: Option<String>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.waits.as_ref().map(|(text, _)| text) == text.as_ref() {
            return;
        }
        match (&text, &said.tunnel) {
            (Some(text), _) => tracing::info!("tunnel: {text}"),
            (None, Some((State::Open(_), _))) => tracing::info!("tunnel: that trouble is over"),
            // How the connecting goes is told next.
            (None, _) => {}
        }
        said.waits = text.map(|text| (text, self.host.now()));
        self.show(&said);
    }

    /// How the tunnel is; `None` when there is nothing to connect to.
    pub(super) fn tunnel(&self, state: Option<State>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.tunnel.as_ref().map(|(state, _)| state) == state.as_ref() {
            return;
        }
        match &state {
            Some(State::Open(server)) => tracing::info!("tunnel: connected to {server}"),
            Some(State::Opening(_)) => {}
            Some(State::Closed(server, why)) => {
                tracing::warn!("tunnel: not connected to {server}, retrying: {why}");
            }
            None => tracing::info!("tunnel: closed, there is nothing to connect to any more"),
        }
        said.tunnel = state.map(|state| (state, self.host.now()));
        self.show(&said);
    }

    fn show(&self, said: &Said) {
        let waits = said.waits.as_ref().map(|(text, since)| (text.as_str(), *since));
        let shown = match (&said.tunnel, waits) {
            (Some((State::Open(server), since)), None) => Some((format!("connected to {server}"), *since)),
            (Some((State::Open(server), since)), Some((waits, _))) => {
                Some((format!("connected to {server}, but {waits}"), *since))
            }
            (Some((State::Opening(server), since)), _) => Some((format!("connects to {server}"), *since)),
            (Some((State::Closed(server, why), since)), _) => {
                Some((format!("not connected to {server}: {why}"), *since))
            }
            (None, Some((waits, since))) => Some((waits.to_owned(), since)),
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
    async fn the_status_tells_where_to_and_since_when() {
        let host = Arc::new(MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, NoProgram));
        let var = Path::new("/var/lib/agent");
        let tell = Tell::new(host.clone(), Arc::new(Board::new(host.clone(), var)));
        let shown = || {
            let status = serde_json::from_slice(&host.read(&status::path(var)).unwrap()).unwrap();
            let text = status::render(&status);
            text.lines().find(|line| line.starts_with("tunnel")).unwrap_or_default().to_owned()
        };
        tell.waits(Some("waits for x".into()));
        assert_eq!(shown(), "tunnel        waits for x (since 2026-01-01T00:00:00Z)");
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        tell.waits(None);
        tell.tunnel(Some(State::Open("m:8443".into())));
        assert_eq!(shown(), "tunnel        connected to m:8443 (since 2026-01-01T00:00:05Z)");
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        tell.waits(Some("cannot read".into()));
        assert_eq!(
            shown(),
            "tunnel        connected to m:8443, but cannot read (since 2026-01-01T00:00:05Z)"
        );
        let writes = host.writes();
        tell.waits(Some("cannot read".into()));
        tell.tunnel(Some(State::Open("m:8443".into())));
        assert_eq!(host.writes(), writes, "nothing new, nothing written");
        tell.tunnel(Some(State::Closed("m:8443".into(), "broken".into())));
        assert_eq!(shown(), "tunnel        not connected to m:8443: broken (since 2026-01-01T00:00:10Z)");
    }
}
