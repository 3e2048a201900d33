//! One unit while it runs: a thread per unit takes it through start, running, stop and restart.
//!
//! Without control groups (an ordinary user has none) the processes of a unit are found by `INVOCATION_ID`, which every
//! process inherits in its environment, and by descent from the main process.

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

/// How long to look for a daemon that a forking service left behind.
const FORK_PATIENCE: Duration = Duration::from_secs(2);
/// How often to look whether the processes of a stopped unit are gone; there is no event for that without cgroups.
const POLL: Duration = Duration::from_millis(20);

pub(super) struct Runner {
    pub(super) unit: Arc<Unit>,
    pub(super) manager: Arc<Manager>,
    pub(super) events: Receiver<Event>,
}

/// How one life of the unit ended.
enum Life {
    Stopped,
    Skipped,
    /// With the word that `systemctl show -p Result` prints.
    Ended(&'static str),
}

enum Waited {
    Ended(Ended),
    Ready,
    Stop,
    Timeout,
}

impl Runner {
    /// Takes the unit from its start to its rest.
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
            let life = self.live(&service);
            let (active, result) = match life {
                Life::Stopped | Life::Skipped => (ActiveState::Inactive, "success"),
                Life::Ended("success") => (ActiveState::Inactive, "success"),
                Life::Ended(result) => (ActiveState::Failed, result),
            };
            let stopping = self.unit.lock().stopping;
            if let Life::Ended(result) = life
                && !stopping
                && restarts(service.restart, result)
            {
                journal::note(name, &format!("Scheduled restart job ({result})."));
                {
                    let mut state = self.unit.lock();
                    state.seen.restarts += 1;
                    state.seen.result = result;
                }
                self.unit.set(ActiveState::Activating, "auto-restart");
                self.unit.settle(&Err(format!("Job for {name} failed: {result}.")));
                if self.pause(service.restart_sec) {
                    // The file may have changed in the meantime.
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

    /// Leaves the unit at rest; nobody hears this runner any more.
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
        self.unit.lock().seen.result = result;
        self.unit.set(active, sub);
        // Waiters that came while the runner was on its way out are told too: settled under the same lock.
        let mut state = self.unit.lock();
        state.inbox = None;
        state.stopping = false;
        for waiter in state.waiters.drain(..) {
            let _ = waiter.send(outcome.clone());
        }
        self.unit.changed.notify_all();
    }

    /// Waits before a restart; false if the unit was stopped meanwhile.
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

    fn live(&self, service: &Service) -> Life {
        let unit = &self.unit;
        if let Some((path, _)) = service.conditions.iter().find(|(path, absent)| path.exists() == *absent) {
            journal::note(
                &unit.name,
                &format!("Condition check of {} resulted in unit being skipped.", path.display()),
            );
            return Life::Skipped;
        }
        let invocation = uuid::Uuid::new_v4().simple().to_string();
        let deadline = service.start_timeout.map(|span| Instant::now() + span);
        unit.set(ActiveState::Activating, "start-pre");
        journal::note(&unit.name, &format!("Starting {}...", service.description));
        let life = match self.commands(service, &service.start_pre, &invocation, deadline, None) {
            Err(life) => life,
            Ok(()) => self.main(service, &invocation, deadline),
        };
        self.sweep(service, &invocation, None);
        unit.set(ActiveState::Deactivating, "stop-post");
        let stop_deadline = service.stop_timeout.map(|span| Instant::now() + span);
        let _ = self.commands(service, &service.stop_post, &invocation, stop_deadline, None);
        if matches!(life, Life::Stopped) {
            journal::note(&unit.name, &format!("Stopped {}.", service.description));
        }
        life
    }

    fn main(&self, service: &Service, invocation: &str, deadline: Option<Instant>) -> Life {
        let unit = &self.unit;
        unit.set(ActiveState::Activating, "start");
        if service.kind == Kind::Oneshot {
            if let Err(life) = self.commands(service, &service.start, invocation, deadline, None) {
                return life;
            }
            if let Err(life) = self.commands(service, &service.start_post, invocation, deadline, None) {
                return life;
            }
            journal::note(&unit.name, &format!("Finished {}.", service.description));
            if !service.remain_after_exit {
                return Life::Ended("success");
            }
            unit.set(ActiveState::Active, "exited");
            unit.settle(&Ok(()));
            return match self.wait(None, None) {
                Waited::Stop => self.stop_commands(service, invocation, None),
                _ => Life::Stopped,
            };
        }
        let Some(exec) = service.start.first() else { return Life::Ended("resources") };
        let mut main = match self.launch(service, exec, invocation, None) {
            Ok(pid) => pid,
            Err(life) => return life,
        };
        unit.lock().seen.main_pid = Some(main);
        match service.kind {
            Kind::Notify => match self.wait(Some(main), deadline) {
                Waited::Ready => (),
                Waited::Ended(ended) => return self.ended(service, ended, "protocol"),
                Waited::Stop => return self.stop_all(service, invocation, main),
                Waited::Timeout => {
                    let _ = self.stop_all(service, invocation, main);
                    return Life::Ended("timeout");
                }
            },
            Kind::Forking => match self.wait(Some(main), deadline) {
                Waited::Ended(Ended::Code(0)) => match self.find_daemon(service, invocation) {
                    Some(daemon) => main = daemon,
                    None => return Life::Ended("protocol"),
                },
                Waited::Ended(ended) => return self.ended(service, ended, "exit-code"),
                Waited::Ready | Waited::Stop => return self.stop_all(service, invocation, main),
                Waited::Timeout => {
                    let _ = self.stop_all(service, invocation, main);
                    return Life::Ended("timeout");
                }
            },
            Kind::Simple | Kind::Oneshot => (),
        }
        unit.lock().seen.main_pid = Some(main);
        if let Err(life) = self.commands(service, &service.start_post, invocation, deadline, Some(main)) {
            let _ = self.stop_all(service, invocation, main);
            return life;
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

    /// A process of the unit ended by itself. `clean` is the result of an exit that was not a failure.
    fn ended(&self, service: &Service, ended: Ended, clean: &'static str) -> Life {
        self.unit.lock().seen.exit = Some(ended);
        journal::note(&self.unit.name, &format!("Main process ended: {ended:?}."));
        let signals =
            [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGPIPE].map(|signal| signal as i32);
        Life::Ended(match ended {
            Ended::Code(0) => clean,
            Ended::Code(code) if service.success_codes.contains(&code) => clean,
            Ended::Code(_) => "exit-code",
            Ended::Signal(signal) if signals.contains(&signal) => clean,
            Ended::Signal(_) => "signal",
        })
    }

    /// Runs commands one after the other; `Err` says how the unit's life ended with one of them.
    fn commands(
        &self,
        service: &Service,
        commands: &[Exec],
        invocation: &str,
        deadline: Option<Instant>,
        main: Option<i32>,
    ) -> Result<(), Life> {
        for exec in commands {
            let pid = match self.launch(service, exec, invocation, main) {
                Ok(pid) => pid,
                Err(_) if exec.may_fail => continue,
                Err(life) => return Err(life),
            };
            if main.is_none() {
                self.unit.lock().seen.main_pid = Some(pid);
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
                    return Err(Life::Ended("timeout"));
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
    ) -> Result<i32, Life> {
        let inbox = self.unit.lock().inbox.clone();
        let launch_it = Launch { unit: &self.unit.name, service, exec, invocation, main, inbox };
        launch(&self.manager, launch_it).map_err(|error| {
            journal::note(&self.unit.name, &format!("Cannot run {}: {error}", exec.words[0]));
            Life::Ended("resources")
        })
    }

    /// Waits for the end of a process, for readiness or for a stop, whichever is first.
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
        let deadline = Instant::now() + FORK_PATIENCE;
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

    /// A requested stop: the unit's own commands first, then signals.
    fn stop_all(&self, service: &Service, invocation: &str, main: i32) -> Life {
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
                        self.unit.lock().seen.exit = Some(ended);
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
        Life::Stopped
    }

    fn stop_commands(&self, service: &Service, invocation: &str, main: Option<i32>) -> Life {
        self.unit.set(ActiveState::Deactivating, "stop");
        let deadline = service.stop_timeout.map(|span| Instant::now() + span);
        for exec in &service.stop {
            if let Ok(pid) = self.launch(service, exec, invocation, main) {
                while let Waited::Ready | Waited::Stop = self.wait(Some(pid), deadline) {}
            }
        }
        Life::Stopped
    }

    /// Ends what is left of a unit whose main process is gone, as far as its KillMode wants that.
    fn sweep(&self, service: &Service, invocation: &str, deadline: Option<Instant>) {
        if matches!(service.kill_mode, KillMode::Process | KillMode::None) {
            return;
        }
        let polite = service.kill_mode == KillMode::ControlGroup;
        let patience = service.stop_timeout.unwrap_or(Duration::from_secs(90));
        let deadline = deadline.unwrap_or_else(|| Instant::now() + patience);
        let mut told = false;
        loop {
            let left = processes::of(invocation, None);
            if left.is_empty() {
                return;
            }
            let last = !polite || Instant::now() > deadline;
            if last || !told {
                for pid in &left {
                    signal(*pid, if last { Signal::SIGKILL } else { service.kill_signal });
                }
                told = true;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A command that ended without a failure does not end the unit's life.
fn accept(life: Life) -> Result<(), Life> {
    match life {
        Life::Ended("success") => Ok(()),
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
