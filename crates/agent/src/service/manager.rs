//! The dialogue with Windows' service manager.
//!
//! The manager starts the process and waits for it to connect. It then calls [`service_main`] on a thread of its own,
//! which must say from start to end how the service is; requests reach [`control`] on yet another thread. Neither call
//! carries anything along, hence the statics.

use std::{
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;
use windows_service::{
    Error,
    service::{
        ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
    },
    service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle},
    service_dispatcher,
};
use windows_sys::Win32::Foundation::ERROR_FAILED_SERVICE_CONTROLLER_CONNECT;

use super::{Agent, State, Supervisor, console::Console, event_log, lead};
use crate::{host::BoxFuture, log, platform};

/// How long starting and stopping may take without another word: the programs of a plan are asked to end first.
const PATIENCE: Duration = Duration::from_secs(30);

static AGENT: Mutex<Option<Agent>> = Mutex::new(None);
static ENDED: Mutex<Option<Result<(), String>>> = Mutex::new(None);
static STOP: Notify = Notify::const_new();
/// Whom to tell, from the first word to the last.
static MANAGER: Mutex<Option<ServiceStatusHandle>> = Mutex::new(None);

/// Runs the agent as a service if the service manager started this process, else in the foreground.
pub fn run(agent: Agent) -> Result<(), String> {
    put(&AGENT, agent);
    match service_dispatcher::start(platform::CURRENT.service(), service_main) {
        // Comes back when the service said that it has stopped.
        Ok(()) => take(&ENDED).unwrap_or_else(|| Err("the service manager did not start the agent".into())),
        Err(Error::Winapi(error)) if is_console(&error) => match take(&AGENT) {
            Some(agent) => lead(&Console, agent),
            None => Err("the agent was started twice".into()),
        },
        Err(error) => Err(format!("cannot talk to the service manager: {}", words(&error))),
    }
}

/// Nobody else starts a process and expects it to connect.
fn is_console(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_FAILED_SERVICE_CONTROLLER_CONNECT.cast_signed())
}

/// The arguments are those that somebody typed behind `sc.exe start`, and mean nothing.
extern "system" fn service_main(_: u32, _: *mut *mut u16) {
    let Some(agent) = take(&AGENT) else { return };
    // A service that has a process of its own needs not know what it was called when it was installed.
    match service_control_handler::register(platform::CURRENT.service(), control) {
        Ok(handle) => {
            put(&MANAGER, handle);
            // What became of it is in `ENDED`.
            let _ = lead(&Manager, agent);
        }
        Err(error) => {
            event_log::write(&tracing::Level::ERROR, &words(&error));
            // Nobody could be told that it stopped, so the connection would never end.
            std::process::exit(1);
        }
    }
}

/// A function and not a closure: the crate frees what the handler holds at the first request to stop, and requests may
/// still come after that. This one holds nothing.
fn control(request: ServiceControl) -> ServiceControlHandlerResult {
    match request {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            // Before this returns, so that nobody who asks for it is told that all is as it was.
            tell(State::Stopping);
            STOP.notify_one();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    }
}

struct Manager;

impl Supervisor for Manager {
    fn told_to_stop(&self) -> io::Result<BoxFuture<'static, ()>> {
        Ok(Box::pin(STOP.notified()))
    }

    fn tell(&self, state: State<'_>) {
        match state {
            State::Stopped => put(&ENDED, Ok(())),
            State::Failed(why) => {
                event_log::write(&tracing::Level::ERROR, why);
                put(&ENDED, Err(why.to_owned()));
            }
            _ => {}
        }
        tell(state);
    }

    fn log(&self) -> log::Sink {
        event_log::write
    }
}

fn tell(state: State<'_>) {
    let mut manager = MANAGER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(handle) = *manager else { return };
    if matches!(state, State::Stopped | State::Failed(_)) {
        // Nothing may be said after that, and the process may be gone before this comes back.
        *manager = None;
    }
    if let Err(error) = handle.set_service_status(status(state)) {
        event_log::write(&tracing::Level::ERROR, &words(&error));
    }
}

fn status(state: State<'_>) -> ServiceStatus {
    let (current_state, controls_accepted, wait_hint) = match state {
        State::Starting => (ServiceState::StartPending, ServiceControlAccept::empty(), PATIENCE),
        State::Running => (
            ServiceState::Running,
            ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN,
            Duration::ZERO,
        ),
        State::Stopping => (ServiceState::StopPending, ServiceControlAccept::empty(), PATIENCE),
        State::Stopped | State::Failed(_) => {
            (ServiceState::Stopped, ServiceControlAccept::empty(), Duration::ZERO)
        }
    };
    let exit_code = match state {
        State::Failed(_) => ServiceExitCode::ServiceSpecific(1),
        _ => ServiceExitCode::NO_ERROR,
    };
    ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state,
        controls_accepted,
        exit_code,
        checkpoint: 0,
        wait_hint,
        process_id: None,
    }
}

/// The crate's own words leave out why.
fn words(error: &Error) -> String {
    match error {
        Error::Winapi(cause) => format!("{error}: {cause}"),
        other => other.to_string(),
    }
}

fn put<T>(place: &Mutex<Option<T>>, value: T) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
}

fn take<T>(place: &Mutex<Option<T>>) -> Option<T> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}
