//! Unix signals, from systemd or a person. States are not reported, because the process itself shows them.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

use super::{Agent, Supervisor, run_agent};
use crate::host::BoxFuture;

/// Runs the agent until it is stopped.
pub fn run(agent: Agent) -> Result<(), String> {
    run_agent(&Signals, agent)
}

struct Signals;

impl Supervisor for Signals {
    fn stop_requested(&self) -> io::Result<BoxFuture<'static, ()>> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        Ok(Box::pin(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }))
    }
}
