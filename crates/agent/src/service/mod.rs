//! Who starts the agent, tells it to stop, and is told how it is: systemd or a person by signals, Windows' service
//! manager in a dialogue.

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

/// How the agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<'a> {
    /// It reads its files.
    Starting,
    /// It can be told to stop.
    Running,
    /// It was told to, and ends what it runs.
    Stopping,
    /// It ended because it was told to.
    Stopped,
    /// It ended because of this, and should be started again.
    Failed(&'a str),
}

/// What started the agent.
pub trait Supervisor: Sync {
    /// Ready when the agent is told to stop. Call it inside a tokio runtime, before [`State::Running`].
    fn told_to_stop(&self) -> io::Result<BoxFuture<'static, ()>>;
    /// Takes note of how the agent is.
    fn tell(&self, _state: State<'_>) {}
    /// Where the log goes.
    fn log(&self) -> log::Sink {
        log::stdout
    }
}

/// The agent, from its start to its end.
pub type Agent = Box<dyn FnOnce(&dyn Supervisor) -> Result<(), String> + Send>;

/// Runs the agent and tells how it begins and ends; what is in between it tells itself.
fn lead(supervisor: &dyn Supervisor, agent: Agent) -> Result<(), String> {
    supervisor.tell(State::Starting);
    let ended = agent(supervisor);
    supervisor.tell(match &ended {
        Ok(()) => State::Stopped,
        Err(why) => State::Failed(why),
    });
    ended
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::sync::Mutex;

    /// One that tells the agent to stop at once, and writes down what it is told.
    #[derive(Default)]
    pub(crate) struct Impatient(Mutex<Vec<String>>);

    impl Supervisor for Impatient {
        fn told_to_stop(&self) -> io::Result<BoxFuture<'static, ()>> {
            Ok(Box::pin(async {}))
        }

        fn tell(&self, state: State<'_>) {
            self.0.lock().unwrap().push(format!("{state:?}"));
        }

        fn log(&self) -> log::Sink {
            |_, _| {}
        }
    }

    impl Impatient {
        /// What it was told while it led the agent.
        pub(crate) fn lead(self, agent: Agent) -> (Result<(), String>, Vec<String>) {
            let ended = lead(&self, agent);
            (ended, self.0.into_inner().unwrap())
        }
    }
}
