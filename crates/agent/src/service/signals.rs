//! Signals of Unix, from systemd or a person. Nobody wants to know how the agent is: the process says it.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

use super::{Agent, Supervisor, lead};
use crate::host::BoxFuture;

/// Runs the agent until it is told to stop.
pub fn run(agent: Agent) -> Result<(), String> {
    lead(&Signals, agent)
}

struct Signals;

impl Supervisor for Signals {
    fn told_to_stop(&self) -> io::Result<BoxFuture<'static, ()>> {
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
