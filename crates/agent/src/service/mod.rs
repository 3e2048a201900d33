//! What starts and stops the agent and receives its state: systemd or a person through signals, or the Windows service
//! manager through its protocol.

#[cfg(windows)]
mod console;
#[cfg(windows)]
mod event_log;
#[cfg(windows)]
mod manager;
#[cfg(unix)]
mod signals;

use std::io;

#[cfg(windows)]
pub use manager::run;
#[cfg(unix)]
pub use signals::run;

use crate::{host::BoxFuture, log};

/// The state of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<'a> {
    /// It reads its files.
    Starting,
    /// It can be stopped.
    Running,
    /// It was asked to stop, and ends what it runs.
    Stopping,
    /// It stopped on request.
    Stopped,
    /// It failed with this error and should be restarted.
    Failed(&'a str),
}

/// What started the agent.
pub trait Supervisor: Sync {
    /// Ready when the agent should stop. Call it inside a tokio runtime, before [`State::Running`].
    fn stop_requested(&self) -> io::Result<BoxFuture<'static, ()>>;
    /// Reports the state of the agent.
    fn report(&self, _state: State<'_>) {}
    /// The sink of the log.
    fn log(&self) -> log::Sink {
        log::stdout
    }
}

/// The agent, from start to end.
pub type Agent = Box<dyn FnOnce(&dyn Supervisor) -> Result<(), String> + Send>;

/// Runs the agent and reports its start and end; the agent reports the states in between.
fn run_agent(supervisor: &dyn Supervisor, agent: Agent) -> Result<(), String> {
    supervisor.report(State::Starting);
    let ended = agent(supervisor);
    supervisor.report(match &ended {
        Ok(()) => State::Stopped,
        Err(why) => State::Failed(why),
    });
    ended
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::sync::Mutex;

    /// Stops the agent immediately and records its states.
    #[derive(Default)]
    pub(crate) struct StopAtOnce(Mutex<Vec<String>>);

    impl Supervisor for StopAtOnce {
        fn stop_requested(&self) -> io::Result<BoxFuture<'static, ()>> {
            Ok(Box::pin(async {}))
        }

        fn report(&self, state: State<'_>) {
            self.0.lock().unwrap().push(format!("{state:?}"));
        }

        fn log(&self) -> log::Sink {
            |_, _| {}
        }
    }

    impl StopAtOnce {
        /// The states that it received while it ran the agent.
        pub(crate) fn run_agent(self, agent: Agent) -> (Result<(), String>, Vec<String>) {
            let ended = run_agent(&self, agent);
            (ended, self.0.into_inner().unwrap())
        }
    }
}
