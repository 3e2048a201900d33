//! A running unit: one thread per unit starts it, waits for it, stops it and restarts it.
//!
//! Non-root users have no control groups, so the processes of a unit are found by `INVOCATION_ID`, which every process
//! inherits in its environment, and as descendants of the main process.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    command::{Launch, launch},
    journal,
    manager::Manager,
    processes,
    reaper::Ended,
    service::{Exec, KillMode, Kind, Restart, Service},
    unit::{ActiveState, Event, Unit},
};

/// How long to search for the daemon of a forking service.
const FORK_TIMEOUT: Duration = Duration::from_secs(2);
/// How often to check whether the processes of a stopped unit have exited. Without cgroups there is no event for that.
const POLL: Duration = Duration::from_millis(20);

pub(super) struct Runner {
    pub(super) unit: Arc<Unit>,
    pub(super) manager: Arc<Manager>,
    pub(super) events: Receiver<Event>,
}

/// How one run of the unit ended.
enum RunEnd {
    Stopped,
    Skipped,
    /// With the value that `systemctl show -p Result` prints.
    Ended(&'static str),
}

enum Waited {
    Ended(Ended),
    Ready,
    Stop,
    Timeout,
}

impl Runner {
    /// Runs the unit until it has stopped and is not restarted.
    pub(super) fn run(&self, mut service: Service) {
        let name = &self.unit.name;
        let mut starts: VecDeque<Instant> = VecDeque::new();
        loop {
            if let Some((burst, interval)) = service.start_limit {
                starts.retain(|start| start.elapsed() < interval);
                if starts.len() >= burst {
                    journal::note(name, "Start request repeated too quickly.");
                    self.end(ActiveState::Failed, "failed", "start-limit-hit");
                    return;
                }
                starts.push_back(Instant::now());
            }
            let run_end = self.run_once(&service);
            let (active, result) = match run_end {
                RunEnd::Stopped | RunEnd::Skipped => (ActiveState::Inactive, "success"),
                RunEnd::Ended("success") => (ActiveState::Inactive, "success"),
                RunEnd::Ended(result) => (ActiveState::Failed, result),
            };
            let stopping = self.unit.lock().stopping;
            if let RunEnd::Ended(result) = run_end
                && !stopping
                && restarts(service.restart, result)
            {
                journal::note(name, &format!("Scheduled restart job ({result})."));
                {
                    let mut state = self.unit.lock();
                    state.status.restarts += 1;
                    state.status.result = result;
                }
                self.unit.set(ActiveState::Activating, "auto-restart");
                self.unit.settle(&Err(format!("Job for {name} failed: {result}.")));
                if self.pause(service.restart_sec) {
                    // The unit file may have changed in the meantime.
                    if let Ok(fresh) = self.manager.load(name) {
                        service = fresh;
                    }
                    continue;
                }
                self.end(ActiveState::Inactive, "dead", "success");
                return;
            }
            self.end(active, if active == ActiveState::Failed { "failed" } else { "dead" }, result);
            return;
        }
    }

    /// Ends the unit in this state. Afterwards this runner receives no events.
    fn end(&self, active: ActiveState, sub: &'static str, result: &'static str) {
        let name = &self.unit.name;
        if result != "success" {
            journal::note(name, &format!("Failed with result '{result}'."));
        }
        let outcome = if active == ActiveState::Failed {
            Err(format!(
                "Job for {name} failed: {result}. See \"systemctl status {name}\" and \"journalctl -u {name}\"."
            ))
        } else {
            Ok(())
        };
        self.unit.lock().status.result = result;
        self.unit.set(active, sub);
        // A waiter may have been added since `set`, so notify all waiters under the lock that removes the inbox.
        let mut state = self.unit.lock();
        state.inbox = None;
        state.stopping = false;
        for waiter in state.waiters.drain(..) {
            let _ = waiter.send(outcome.clone());
        }
        self.unit.changed.notify_all();
    }

    /// Waits before a restart. Returns false if the unit was stopped in the meantime.
    fn pause(&self, span: Duration) -> bool {
        let deadline = Instant::now() + span;
        loop {
            if self.unit.lock().stopping {
                return false;
            }
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Stop) => return false,
                Ok(Event::StartNow) | Err(RecvTimeoutError::Timeout) => return true,
                Ok(_) => (),
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn run_once(&self, service: &Service) -> RunEnd {
        let unit = &self.unit;
        if let Some((path, _)) = service.conditions.iter().find(|(path, absent)| path.exists() == *absent) {
            journal::note(
                &unit.name,
                &format!("Condition check of {} resulted in unit being skipped.", path.display()),
            );
            return RunEnd::Skipped;
        }
        let invocation = uuid::Uuid::new_v4().simple().to_string();
        let deadline = service.start_timeout.map(|span| Instant::now() + span);
        unit.set(ActiveState::Activating, "start-pre");
        journal::note(&unit.name, &format!("Starting {}...", service.description));
        let run_end = match self.commands(service, &service.start_pre, &invocation, deadline, None) {
            Err(run_end) => run_end,
            Ok(()) => self.main(service, &invocation, deadline),
        };
        self.sweep(service, &invocation, None);
        unit.set(ActiveState::Deactivating, "stop-post");
        let stop_deadline = service.stop_timeout.map(|span| Instant::now() + span);
        let _ = self.commands(service, &service.stop_post, &invocation, stop_deadline, None);
        if matches!(run_end, RunEnd::Stopped) {
            journal::note(&unit.name, &format!("Stopped {}.", service.description));
        }
        run_end
    }

    fn main(&self, service: &Service, invocation: &str, deadline: Option<Instant>) -> RunEnd {
        let unit = &self.unit;
        unit.set(ActiveState::Activating, "start");
        if service.kind == Kind::Oneshot {
            if let Err(run_end) = self.commands(service, &service.start, invocation, deadline, None) {
                return run_end;
            }
            if let Err(run_end) = self.commands(service, &service.start_post, invocation, deadline, None) {
                return run_end;
            }
            journal::note(&unit.name, &format!("Finished {}.", service.description));
            if !service.remain_after_exit {
                return RunEnd::Ended("success");
            }
            unit.set(ActiveState::Active, "exited");
            unit.settle(&Ok(()));
            return match self.wait(None, None) {
                Waited::Stop => self.stop_commands(service, invocation, None),
                _ => RunEnd::Stopped,
            };
        }
        let Some(exec) = service.start.first() else { return RunEnd::Ended("resources") };
        let mut main = match self.launch(service, exec, invocation, None) {
            Ok(pid) => pid,
            Err(run_end) => return run_end,
        };
        unit.lock().status.main_pid = Some(main);
        match service.kind {
            Kind::Notify => match self.wait(Some(main), deadline) {
                Waited::Ready => (),
                Waited::Ended(ended) => return self.ended(service, ended, "protocol"),
                Waited::Stop => return self.stop_all(service, invocation, main),
                Waited::Timeout => {
                    let _ = self.stop_all(service, invocation, main);
                    return RunEnd::Ended("timeout");
                }
            },
            Kind::Forking => match self.wait(Some(main), deadline) {
                Waited::Ended(Ended::Code(0)) => match self.find_daemon(service, invocation) {
                    Some(daemon) => main = daemon,
                    None => return RunEnd::Ended("protocol"),
                },
                Waited::Ended(ended) => return self.ended(service, ended, "exit-code"),
                Waited::Ready | Waited::Stop => return self.stop_all(service, invocation, main),
                Waited::Timeout => {
                    let _ = self.stop_all(service, invocation, main);
                    return RunEnd::Ended("timeout");
                }
            },
            Kind::Simple | Kind::Oneshot => (),
        }
        unit.lock().status.main_pid = Some(main);
        if let Err(run_end) = self.commands(service, &service.start_post, invocation, deadline, Some(main)) {
            let _ = self.stop_all(service, invocation, main);
            return run_end;
        }
        journal::note(&unit.name, &format!("Started {}.", service.description));
        unit.set(ActiveState::Active, "running");
        unit.settle(&Ok(()));
        loop {
            match self.wait(Some(main), None) {
                Waited::Ended(ended) => return self.ended(service, ended, "success"),
                Waited::Stop => return self.stop_all(service, invocation, main),
                Waited::Ready | Waited::Timeout => (),
            }
        }
    }

    /// Handles the exit of a process of the unit. `clean` is the result of an exit that is not a failure.
    fn ended(&self, service: &Service, ended: Ended, clean: &'static str) -> RunEnd {
        self.unit.lock().status.exit = Some(ended);
        journal::note(&self.unit.name, &format!("Main process ended: {ended:?}."));
        let signals =
            [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGPIPE].map(|signal| signal as i32);
        RunEnd::Ended(match ended {
            Ended::Code(0) => clean,
            Ended::Code(code) if service.success_codes.contains(&code) => clean,
            Ended::Code(_) => "exit-code",
            Ended::Signal(signal) if signals.contains(&signal) => clean,
            Ended::Signal(_) => "signal",
        })
    }

    /// Runs commands one after the other. `Err` means that the run of the unit ended with one of them.
    fn commands(
        &self,
        service: &Service,
        commands: &[Exec],
        invocation: &str,
        deadline: Option<Instant>,
        main: Option<i32>,
    ) -> Result<(), RunEnd> {
        for exec in commands {
            let pid = match self.launch(service, exec, invocation, main) {
                Ok(pid) => pid,
                Err(_) if exec.may_fail => continue,
                Err(run_end) => return Err(run_end),
            };
            if main.is_none() {
                self.unit.lock().status.main_pid = Some(pid);
            }
            let waited = loop {
                match self.wait(Some(pid), deadline) {
                    Waited::Ready => (),
                    other => break other,
                }
            };
            match waited {
                Waited::Ended(ended) if exec.may_fail || ended == Ended::Code(0) => (),
                Waited::Ended(ended) => return Err(self.ended(service, ended, "success")).or_else(accept),
                Waited::Stop => return Err(self.stop_all(service, invocation, pid)),
                Waited::Timeout | Waited::Ready => {
                    let _ = self.stop_all(service, invocation, pid);
                    return Err(RunEnd::Ended("timeout"));
                }
            }
        }
        Ok(())
    }

    fn launch(
        &self,
        service: &Service,
        exec: &Exec,
        invocation: &str,
        main: Option<i32>,
    ) -> Result<i32, RunEnd> {
        let inbox = self.unit.lock().inbox.clone();
        let launch_it = Launch { unit: &self.unit.name, service, exec, invocation, main, inbox };
        launch(&self.manager, launch_it).map_err(|error| {
            journal::note(&self.unit.name, &format!("Failed to run {}: {error}", exec.words[0]));
            RunEnd::Ended("resources")
        })
    }

    /// Waits for the exit of a process, for readiness or for a stop, whichever comes first.
    fn wait(&self, pid: Option<i32>, deadline: Option<Instant>) -> Waited {
        loop {
            let event = match deadline {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(end) => self.events.recv_timeout(end.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(Event::Ended(of, ended)) if Some(of) == pid => return Waited::Ended(ended),
                Ok(Event::Ended(..) | Event::StartNow) => (),
                Ok(Event::Ready) => return Waited::Ready,
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Waited::Stop,
                Err(RecvTimeoutError::Timeout) => return Waited::Timeout,
            }
        }
    }

    fn find_daemon(&self, service: &Service, invocation: &str) -> Option<i32> {
        let deadline = Instant::now() + FORK_TIMEOUT;
        loop {
            let named = service.pid_file.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
            let pid = match &service.pid_file {
                Some(_) => named.and_then(|text| text.trim().parse().ok()),
                None => processes::of(invocation, None).into_iter().min(),
            };
            if let (Some(pid), Some(inbox)) = (pid, self.unit.lock().inbox.clone())
                && self.manager.reaper.watch(pid, move |ended| {
                    let _ = inbox.send(Event::Ended(pid, ended));
                })
            {
                return Some(pid);
            }
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Stops the unit: runs its stop commands, then sends signals.
    fn stop_all(&self, service: &Service, invocation: &str, main: i32) -> RunEnd {
        self.unit.set(ActiveState::Deactivating, "stop-sigterm");
        let _ = self.stop_commands(service, invocation, Some(main));
        let deadline = service.stop_timeout.map(|span| Instant::now() + span);
        let group = processes::of(invocation, Some(main));
        if service.kill_mode != KillMode::None {
            signal(main, service.kill_signal);
            signal(main, Signal::SIGCONT);
        }
        if service.kill_mode == KillMode::ControlGroup {
            for pid in group.iter().filter(|pid| **pid != main) {
                signal(*pid, service.kill_signal);
            }
        }
        if service.kill_mode != KillMode::None && processes::alive(main) {
            loop {
                match self.wait(Some(main), deadline) {
                    Waited::Ended(ended) => {
                        self.unit.lock().status.exit = Some(ended);
                        break;
                    }
                    Waited::Timeout => {
                        journal::note(&self.unit.name, "State 'stop-sigterm' timed out. Killing.");
                        signal(main, Signal::SIGKILL);
                        break;
                    }
                    Waited::Ready | Waited::Stop => (),
                }
            }
        }
        self.sweep(service, invocation, deadline);
        RunEnd::Stopped
    }

    fn stop_commands(&self, service: &Service, invocation: &str, main: Option<i32>) -> RunEnd {
        self.unit.set(ActiveState::Deactivating, "stop");
        let deadline = service.stop_timeout.map(|span| Instant::now() + span);
        for exec in &service.stop {
            if let Ok(pid) = self.launch(service, exec, invocation, main) {
                while let Waited::Ready | Waited::Stop = self.wait(Some(pid), deadline) {}
            }
        }
        RunEnd::Stopped
    }

    /// Ends the remaining processes of a unit whose main process has exited, as its KillMode requires.
    fn sweep(&self, service: &Service, invocation: &str, deadline: Option<Instant>) {
        if matches!(service.kill_mode, KillMode::Process | KillMode::None) {
            return;
        }
        let graceful = service.kill_mode == KillMode::ControlGroup;
        let timeout = service.stop_timeout.unwrap_or(Duration::from_secs(90));
        let deadline = deadline.unwrap_or_else(|| Instant::now() + timeout);
        let mut signalled = false;
        loop {
            let left = processes::of(invocation, None);
            if left.is_empty() {
                return;
            }
            let last = !graceful || Instant::now() > deadline;
            if last || !signalled {
                for pid in &left {
                    signal(*pid, if last { Signal::SIGKILL } else { service.kill_signal });
                }
                signalled = true;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A command that exited without a failure does not end the run of the unit.
fn accept(run_end: RunEnd) -> Result<(), RunEnd> {
    match run_end {
        RunEnd::Ended("success") => Ok(()),
        other => Err(other),
    }
}

fn restarts(policy: Restart, result: &str) -> bool {
    match policy {
        Restart::No => false,
        Restart::Always => true,
        Restart::OnSuccess => result == "success",
        Restart::OnFailure => result != "success",
        Restart::OnAbnormal => matches!(result, "signal" | "timeout"),
    }
}

fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_policies() {
        for (policy, success, code, signal) in [
            (Restart::No, false, false, false),
            (Restart::Always, true, true, true),
            (Restart::OnSuccess, true, false, false),
            (Restart::OnFailure, false, true, true),
            (Restart::OnAbnormal, false, false, true),
        ] {
            let seen = ["success", "exit-code", "signal"].map(|result| restarts(policy, result));
            assert_eq!(seen, [success, code, signal], "{policy:?}");
        }
    }
}
