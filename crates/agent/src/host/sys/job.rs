//! The processes of one run as a Windows job: processes that they start belong to it too, even after their parent
//! ended. The job ends with its last handle, so a run never outlives an agent that is killed.

use std::{
    io, mem,
    os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle, RawHandle},
    ptr,
};

use tokio::process::Child;
use windows_sys::Win32::System::{
    Console::{CTRL_BREAK_EVENT, GenerateConsoleCtrlEvent},
    JobObjects::{
        AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT, JOB_OBJECT_LIMIT_BREAKAWAY_OK,
        JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE, JOBOBJECT_EXTENDED_LIMIT_INFORMATION,
        JobObjectExtendedLimitInformation, SetInformationJobObject, TerminateJobObject,
    },
};

/// The exit code of programs that were killed.
const KILLED: u32 = 1;

/// Kills the processes when the run is aborted.
pub(in crate::host) struct Group {
    job: Option<Job>,
    leader: Option<u32>,
}

impl Group {
    /// Creates the group of a process that was just started. Without a job, only the process itself can be killed.
    pub(in crate::host) fn of(child: &Child) -> Self {
        let job = child.raw_handle().map(Job::of).transpose().unwrap_or_else(|error| {
            tracing::warn!("processes that this program starts cannot be killed: {error}");
            None
        });
        Self { job, leader: child.id() }
    }

    /// Asks the processes to end, if they share a console with the agent.
    #[allow(unsafe_code)]
    pub(in crate::host) fn ask(&self) {
        if let Some(leader) = self.leader {
            // SAFETY: only numbers are passed. The process leads its own process group.
            unsafe { GenerateConsoleCtrlEvent(CTRL_BREAK_EVENT, leader) };
        }
    }

    /// Kills the processes.
    pub(in crate::host) fn kill(&self) {
        if let Some(job) = &self.job {
            job.kill();
        }
    }

    /// Lets background processes keep running.
    pub(in crate::host) fn release(&mut self) {
        if let Some(job) = self.job.take()
            && let Err(error) = job.limit(0)
        {
            tracing::warn!("background processes of this program will be killed: {error}");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Job(OwnedHandle);

impl Job {
    #[allow(unsafe_code)]
    fn of(process: RawHandle) -> io::Result<Self> {
        // SAFETY: a job without name and attributes; the handle has no other owner.
        let job = unsafe {
            let handle = CreateJobObjectW(ptr::null(), ptr::null());
            if handle.is_null() {
                return Err(io::Error::last_os_error());
            }
            Self(OwnedHandle::from_raw_handle(handle))
        };
        job.limit(JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE)?;
        // SAFETY: both handles are open.
        succeeded(unsafe { AssignProcessToJobObject(job.0.as_raw_handle(), process) })?;
        Ok(job)
    }

    /// Sets the limits of the job. Processes may leave it, as services do that a program installs.
    #[allow(unsafe_code)]
    fn limit(&self, limits: JOB_OBJECT_LIMIT) -> io::Result<()> {
        let mut information = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        information.BasicLimitInformation.LimitFlags = limits | JOB_OBJECT_LIMIT_BREAKAWAY_OK;
        // SAFETY: the information has the given kind and size.
        succeeded(unsafe {
            SetInformationJobObject(
                self.0.as_raw_handle(),
                JobObjectExtendedLimitInformation,
                ptr::from_ref(&information).cast(),
                mem::size_of_val(&information) as u32,
            )
        })
    }

    #[allow(unsafe_code)]
    fn kill(&self) {
        // SAFETY: the handle is open. It is fine if the job has already ended.
        unsafe { TerminateJobObject(self.0.as_raw_handle(), KILLED) };
    }
}

fn succeeded(done: windows_sys::core::BOOL) -> io::Result<()> {
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
