//! Whether a process lives.

/// Whether a process with this id runs on the machine itself.
#[cfg(unix)]
pub fn is_alive(pid: u32) -> bool {
    std::path::Path::new("/proc").join(pid.to_string()).exists()
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
}
