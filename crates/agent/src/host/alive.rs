//! Checks whether a process is running.

/// Whether a process with this id runs on this host.
#[cfg(unix)]
pub fn is_alive(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // A process that ended is listed until its parent waits for it. Its name can contain anything, but ends with
        // the last parenthesis.
        Ok(stat) => !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X'])),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

/// Whether a process with this id runs on this host.
#[cfg(windows)]
#[allow(unsafe_code)]
pub fn is_alive(pid: u32) -> bool {
    use windows_sys::Win32::{
        Foundation::{CloseHandle, ERROR_ACCESS_DENIED, WAIT_TIMEOUT},
        System::Threading::{OpenProcess, PROCESS_SYNCHRONIZE, WaitForSingleObject},
    };
    // SAFETY: only numbers are passed; the handle is closed below.
    let process = unsafe { OpenProcess(PROCESS_SYNCHRONIZE, 0, pid) };
    if process.is_null() {
        // A process of another user exists too.
        let error = std::io::Error::last_os_error().raw_os_error();
        return error == Some(ERROR_ACCESS_DENIED.cast_signed());
    }
    // SAFETY: the handle is open until here. A process that ended can be opened while another handle to it exists, so
    // its state is checked.
    unsafe {
        let waited = WaitForSingleObject(process, 0);
        CloseHandle(process);
        waited == WAIT_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_and_ended_processes_are_distinguished() {
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn a_zombie_process_is_not_running() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(is_alive(child.id()));
        child.kill().unwrap();
        let started = std::time::Instant::now();
        while is_alive(child.id()) {
            assert!(started.elapsed() < std::time::Duration::from_secs(10));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child.wait().unwrap();
    }
}
