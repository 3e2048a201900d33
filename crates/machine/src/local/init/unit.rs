//! One unit as others see it: its state, and how it is told to start and stop. What happens in between is `runner`.

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
    /// Do not wait any longer for the next restart.
    StartNow,
}

pub(crate) struct Unit {
    pub(crate) name: String,
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) active: ActiveState,
    pub(crate) sub: &'static str,
    pub(crate) main_pid: Option<i32>,
    pub(crate) exit: Option<Ended>,
    pub(crate) result: &'static str,
    pub(crate) since: jiff::Timestamp,
    pub(crate) restarts: u32,
}

pub(super) struct State {
    pub(super) seen: Seen,
    /// There while a runner lives.
    pub(super) inbox: Option<Sender<Event>>,
    /// A stop was asked for and has not been carried out: whatever the runner is at, it starts nothing more.
    pub(super) stopping: bool,
    /// Who waits for the start to be decided.
    pub(super) waiters: Vec<Sender<Result<(), String>>>,
}

impl Unit {
    pub(crate) fn new(name: &str) -> Unit {
        let seen = Seen {
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
            state: Mutex::new(State { seen, inbox: None, stopping: false, waiters: Vec::new() }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.lock().seen.clone()
    }

    /// Starts the unit unless it runs. The receiver gets the outcome of this start.
    pub(crate) fn start(
        self: &Arc<Self>,
        manager: &Arc<Manager>,
        service: Service,
    ) -> Receiver<Result<(), String>> {
        let (sender, outcome) = channel();
        let mut state = self.lock();
        while state.inbox.is_some() && (state.stopping || state.seen.active == ActiveState::Deactivating) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(inbox) = &state.inbox {
            if state.seen.active == ActiveState::Active {
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
        state.seen.active = ActiveState::Activating;
        state.seen.restarts = 0;
        drop(state);
        let (unit, manager) = (self.clone(), manager.clone());
        std::thread::spawn(move || Runner { unit, manager, events }.run(service));
        outcome
    }

    /// Stops the unit and waits for that.
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

    /// A program of the unit said that it is ready.
    pub(crate) fn ready(&self) {
        if let Some(inbox) = &self.lock().inbox {
            let _ = inbox.send(Event::Ready);
        }
    }

    pub(crate) fn reset_failed(&self) {
        let mut state = self.lock();
        if state.seen.active == ActiveState::Failed {
            state.seen.active = ActiveState::Inactive;
            state.seen.sub = "dead";
            state.seen.result = "success";
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, active: ActiveState, sub: &'static str) {
        let mut state = self.lock();
        if state.seen.active != active {
            state.seen.since = jiff::Timestamp::now();
        }
        state.seen.active = active;
        state.seen.sub = sub;
        if !matches!(active, ActiveState::Active | ActiveState::Activating | ActiveState::Deactivating) {
            state.seen.main_pid = None;
        }
        self.changed.notify_all();
    }

    pub(super) fn settle(&self, outcome: &Result<(), String>) {
        for waiter in self.lock().waiters.drain(..) {
            let _ = waiter.send(outcome.clone());
        }
    }
}
