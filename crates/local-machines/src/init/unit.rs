//! The state of one unit, and how to start and stop it. [`super::runner`] executes that.

use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError,
    mpsc::{Receiver, Sender, channel},
};

use super::{manager::Manager, reaper::Ended, runner::Runner, service::Service};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActiveState {
    Inactive,
    Activating,
    Active,
    Deactivating,
    Failed,
}

impl ActiveState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ActiveState::Inactive => "inactive",
            ActiveState::Activating => "activating",
            ActiveState::Active => "active",
            ActiveState::Deactivating => "deactivating",
            ActiveState::Failed => "failed",
        }
    }
}

pub(crate) enum Event {
    Ended(i32, Ended),
    Ready,
    Stop,
    /// Do not wait for the next restart.
    StartNow,
}

pub(crate) struct Unit {
    pub(crate) name: String,
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Clone)]
pub(crate) struct UnitStatus {
    pub(crate) active: ActiveState,
    pub(crate) sub: &'static str,
    pub(crate) main_pid: Option<i32>,
    pub(crate) exit: Option<Ended>,
    pub(crate) result: &'static str,
    pub(crate) since: jiff::Timestamp,
    pub(crate) restarts: u32,
}

pub(super) struct State {
    pub(super) status: UnitStatus,
    /// Present while a runner exists.
    pub(super) inbox: Option<Sender<Event>>,
    /// A stop was requested and is not complete: the runner must not start anything.
    pub(super) stopping: bool,
    /// Waiters for the outcome of the start.
    pub(super) waiters: Vec<Sender<Result<(), String>>>,
}

impl Unit {
    pub(crate) fn new(name: &str) -> Unit {
        let status = UnitStatus {
            active: ActiveState::Inactive,
            sub: "dead",
            main_pid: None,
            exit: None,
            result: "success",
            since: jiff::Timestamp::now(),
            restarts: 0,
        };
        Unit {
            name: name.to_owned(),
            state: Mutex::new(State { status, inbox: None, stopping: false, waiters: Vec::new() }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn status(&self) -> UnitStatus {
        self.lock().status.clone()
    }

    /// Starts the unit unless it is running. The receiver gets the outcome of the start.
    pub(crate) fn start(
        self: &Arc<Self>,
        manager: &Arc<Manager>,
        service: Service,
    ) -> Receiver<Result<(), String>> {
        let (sender, outcome) = channel();
        let mut state = self.lock();
        while state.inbox.is_some() && (state.stopping || state.status.active == ActiveState::Deactivating) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(inbox) = &state.inbox {
            if state.status.active == ActiveState::Active {
                let _ = sender.send(Ok(()));
            } else {
                let _ = inbox.send(Event::StartNow);
                state.waiters.push(sender);
            }
            return outcome;
        }
        let (inbox, events) = channel();
        state.inbox = Some(inbox);
        state.waiters.push(sender);
        state.status.active = ActiveState::Activating;
        state.status.restarts = 0;
        drop(state);
        let (unit, manager) = (self.clone(), manager.clone());
        std::thread::spawn(move || Runner { unit, manager, events }.run(service));
        outcome
    }

    /// Stops the unit and waits until it has stopped.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        if let Some(inbox) = &state.inbox {
            let _ = inbox.send(Event::Stop);
            state.stopping = true;
        }
        while state.inbox.is_some() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Handles `READY=1` of a program of the unit.
    pub(crate) fn ready(&self) {
        if let Some(inbox) = &self.lock().inbox {
            let _ = inbox.send(Event::Ready);
        }
    }

    pub(crate) fn reset_failed(&self) {
        let mut state = self.lock();
        if state.status.active == ActiveState::Failed {
            state.status.active = ActiveState::Inactive;
            state.status.sub = "dead";
            state.status.result = "success";
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, active: ActiveState, sub: &'static str) {
        let mut state = self.lock();
        if state.status.active != active {
            state.status.since = jiff::Timestamp::now();
        }
        state.status.active = active;
        state.status.sub = sub;
        if !matches!(active, ActiveState::Active | ActiveState::Activating | ActiveState::Deactivating) {
            state.status.main_pid = None;
        }
        self.changed.notify_all();
    }

    pub(super) fn settle(&self, outcome: &Result<(), String>) {
        for waiter in self.lock().waiters.drain(..) {
            let _ = waiter.send(outcome.clone());
        }
    }
}
