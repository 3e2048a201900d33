//! The processes of one run, as a job of Windows: whoever one of them starts belongs to it as well, also after the one
//! that started it ended. It ends with the last handle on it, so nothing of a run outlives an agent that is killed.

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

/// What programs that were killed from outside end with.
const KILLED: u32 = 1;

/// Ends all of them when the run is abandoned.
pub(in crate::host) struct Group {
    job: Option<Job>,
    leader: Option<u32>,
}

impl Group {
    /// Those that this process, which was just started, will start. Without a job, it still ends with its handle.
    pub(in crate::host) fn of(child: &Child) -> Self {
        let job = child.raw_handle().map(Job::of).transpose().unwrap_or_else(|error| {
            tracing::warn!("nobody ends what this program starts: {error}");
            None
        });
        Self { job, leader: child.id() }
    }

    /// Asks all of them to end, if the agent has a console that they share.
    #[allow(unsafe_code)]
    pub(in crate::host) fn ask(&self) {
        if let Some(leader) = self.leader {
            // SAFETY: takes numbers. The process leads a process group of its own.
            unsafe { GenerateConsoleCtrlEvent(CTRL_BREAK_EVENT, leader) };
        }
    }

    /// Ends all of them.
    pub(in crate::host) fn kill(&self) {
        if let Some(job) = &self.job {
            job.kill();
        }
    }

    /// Whatever lives on is no longer ours.
    pub(in crate::host) fn release(&mut self) {
        if let Some(job) = self.job.take()
            && let Err(error) = job.limit(0)
        {
            tracing::warn!("what this program left running ends now: {error}");
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
        // SAFETY: a job without name and attributes; the handle is nobody else's.
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

    /// Sets what holds for its members. Those that want to may always leave, as services do that a program installs.
    #[allow(unsafe_code)]
    fn limit(&self, limits: JOB_OBJECT_LIMIT) -> io::Result<()> {
        let mut information = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        information.BasicLimitInformation.LimitFlags = limits | JOB_OBJECT_LIMIT_BREAKAWAY_OK;
        // SAFETY: the information is of the announced kind and size.
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
        // SAFETY: the handle is open. Already gone is fine.
        unsafe { TerminateJobObject(self.0.as_raw_handle(), KILLED) };
    }
}

fn succeeded(done: windows_sys::core::BOOL) -> io::Result<()> {
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
