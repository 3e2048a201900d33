//! The protocol of the Windows service manager.
//!
//! The manager starts the process and waits for it to connect. It then calls [`service_main`] on a separate thread,
//! which must report every state of the service; requests arrive in [`control`] on another thread. Neither call has a
//! context argument, hence the statics.

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

use super::{Agent, State, Supervisor, console::Console, event_log, run_agent};
use crate::{host::BoxFuture, log, platform};

/// The time limit for starting and stopping, which first waits for the programs of a plan.
const PATIENCE: Duration = Duration::from_secs(30);

static AGENT: Mutex<Option<Agent>> = Mutex::new(None);
static ENDED: Mutex<Option<Result<(), String>>> = Mutex::new(None);
static STOP: Notify = Notify::const_new();
/// The handle for reporting states, from the first to the last.
static MANAGER: Mutex<Option<ServiceStatusHandle>> = Mutex::new(None);

/// Runs the agent as a service if the service manager started this process, else in the foreground.
pub fn run(agent: Agent) -> Result<(), String> {
    put(&AGENT, agent);
    match service_dispatcher::start(platform::CURRENT.service(), service_main) {
        // Returns when the service has reported that it stopped.
        Ok(()) => take(&ENDED).unwrap_or_else(|| Err("the service manager did not start the agent".into())),
        Err(Error::Winapi(error)) if is_console(&error) => match take(&AGENT) {
            Some(agent) => run_agent(&Console, agent),
            None => Err("the agent was already started".into()),
        },
        Err(error) => Err(format!("failed to connect to the service manager: {}", words(&error))),
    }
}

/// Only the service manager starts a process that must connect to it.
fn is_console(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_FAILED_SERVICE_CONTROLLER_CONNECT.cast_signed())
}

/// The arguments come from `sc.exe start` and are ignored.
extern "system" fn service_main(_: u32, _: *mut *mut u16) {
    let Some(agent) = take(&AGENT) else { return };
    // A service with its own process does not need the name it was installed with.
    match service_control_handler::register(platform::CURRENT.service(), control) {
        Ok(handle) => {
            put(&MANAGER, handle);
            // The result is in `ENDED`.
            let _ = run_agent(&Manager, agent);
        }
        Err(error) => {
            event_log::write(&tracing::Level::ERROR, &words(&error));
            // Without a handle the stop could not be reported, so the connection would never end.
            std::process::exit(1);
        }
    }
}

/// A function and not a closure: the crate frees the handler's state at the first stop request, and requests can arrive
/// after that. A function has no state.
fn control(request: ServiceControl) -> ServiceControlHandlerResult {
    match request {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            // Report before returning, so that a status query does not return the old state.
            report(State::Stopping);
            STOP.notify_one();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    }
}

struct Manager;

impl Supervisor for Manager {
    fn stop_requested(&self) -> io::Result<BoxFuture<'static, ()>> {
        Ok(Box::pin(STOP.notified()))
    }

    fn report(&self, state: State<'_>) {
        match state {
            State::Stopped => put(&ENDED, Ok(())),
            State::Failed(why) => {
                event_log::write(&tracing::Level::ERROR, why);
                put(&ENDED, Err(why.to_owned()));
            }
            _ => {}
        }
        report(state);
    }

    fn log(&self) -> log::Sink {
        event_log::write
    }
}

fn report(state: State<'_>) {
    let mut manager = MANAGER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(handle) = *manager else { return };
    if matches!(state, State::Stopped | State::Failed(_)) {
        // Nothing may be reported after that, and the process may end before this call returns.
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

/// The crate's message does not include the cause.
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
