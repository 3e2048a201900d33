//! Reaps all processes of a machine, both children of process 1 and orphans, and notifies the waiting threads.

use std::{
    collections::HashMap,
    io,
    process::Command,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use nix::{
    errno::Errno,
    sys::wait::{Id, WaitPidFlag, WaitStatus, waitid},
    unistd::Pid,
};

/// How a process exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

impl Ended {
    /// The exit code that a shell reports.
    pub(crate) fn code(self) -> i32 {
        match self {
            Ended::Code(code) => code,
            Ended::Signal(signal) => 128 + signal,
        }
    }
}

type OnEnd = Box<dyn FnOnce(Ended) + Send>;

#[derive(Default)]
pub(crate) struct Reaper {
    inner: Mutex<Inner>,
    spawned: Condvar,
}

#[derive(Default)]
struct Inner {
    waiting: HashMap<i32, OnEnd>,
    spawns: u64,
}

impl Reaper {
    /// Starts a program. Calls `on_end` once after it has exited.
    pub(crate) fn spawn(
        &self,
        command: &mut Command,
        on_end: impl FnOnce(Ended) + Send + 'static,
    ) -> io::Result<i32> {
        // The lock prevents the reaper from reaping a child for which `Command` itself still waits, which happens if
        // the program cannot be executed.
        let mut inner = self.lock();
        let child = command.spawn()?;
        let pid = child.id() as i32;
        inner.waiting.insert(pid, Box::new(on_end));
        inner.spawns += 1;
        self.spawned.notify_all();
        Ok(pid)
    }

    /// Calls `on_end` when an adopted process has exited. Returns false if the process does not exist.
    pub(crate) fn watch(&self, pid: i32, on_end: impl FnOnce(Ended) + Send + 'static) -> bool {
        let mut inner = self.lock();
        if nix::sys::signal::kill(Pid::from_raw(pid), None).is_err() {
            return false;
        }
        inner.waiting.insert(pid, Box::new(on_end));
        true
    }

    /// The main loop of process 1.
    pub(crate) fn run(&self) -> ! {
        let mut seen = 0;
        loop {
            match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Ok(status) => {
                    if let Some(pid) = status.pid() {
                        self.reap(pid);
                    }
                }
                Err(Errno::ECHILD) => {
                    // There are no children, so there cannot be orphans either, until the next spawn.
                    let mut inner = self.lock();
                    while inner.spawns == seen {
                        inner = self.spawned.wait(inner).unwrap_or_else(PoisonError::into_inner);
                    }
                    seen = inner.spawns;
                }
                Err(_) => (),
            }
        }
    }

    fn reap(&self, pid: Pid) {
        let mut inner = self.lock();
        let ended = match waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::Exited(_, code)) => Ended::Code(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => Ended::Signal(signal as i32),
            _ => return,
        };
        let on_end = inner.waiting.remove(&pid.as_raw());
        drop(inner);
        if let Some(on_end) = on_end {
            on_end(ended);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
