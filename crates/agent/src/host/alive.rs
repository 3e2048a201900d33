//! Whether a process lives.

/// Whether a process with this id runs on the machine itself.
#[cfg(unix)]
pub fn is_alive(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // One that ended is listed until its parent asks for it. Its name may hold anything, but ends with the last
        // parenthesis.
        Ok(stat) => !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X'])),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

/// Whether a process with this id runs on the machine itself.
#[cfg(windows)]
#[allow(unsafe_code)]
pub fn is_alive(pid: u32) -> bool {
    use windows_sys::Win32::{
        Foundation::{CloseHandle, ERROR_ACCESS_DENIED, WAIT_TIMEOUT},
        System::Threading::{OpenProcess, PROCESS_SYNCHRONIZE, WaitForSingleObject},
    };
    // SAFETY: takes and gives numbers; what it opens is closed below.
    let process = unsafe { OpenProcess(PROCESS_SYNCHRONIZE, 0, pid) };
    if process.is_null() {
        // Somebody else's process is one too.
        let error = std::io::Error::last_os_error().raw_os_error();
        return error == Some(ERROR_ACCESS_DENIED.cast_signed());
    }
    // SAFETY: the handle is open until here. One that ended can be opened as long as anybody else has it open, and is
    // told from the living by this.
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
    fn the_living_are_told_from_the_dead() {
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn one_that_nobody_waited_for_is_dead_all_the_same() {
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
