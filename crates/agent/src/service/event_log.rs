//! Logs to the Windows event log, for a service without a console.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use tracing::Level;
use windows_sys::Win32::System::EventLog::{
    EVENTLOG_ERROR_TYPE, EVENTLOG_INFORMATION_TYPE, EVENTLOG_WARNING_TYPE, RegisterEventSourceW, ReportEventW,
};

use crate::platform;

/// The id of the message that consists only of its text, in the message file that an installer registers for this
/// source.
const TEXT: u32 = 1;
/// The maximum length of a line in the event log, in UTF-16 units.
const LONGEST: usize = 31_000;

static SOURCE: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(ptr::null_mut());

/// Writes one line as an event of the source with the service's name.
#[allow(unsafe_code)]
pub(super) fn write(level: &Level, line: &str) {
    let kind = match *level {
        Level::ERROR => EVENTLOG_ERROR_TYPE,
        Level::WARN => EVENTLOG_WARNING_TYPE,
        _ => EVENTLOG_INFORMATION_TYPE,
    };
    let text: Vec<u16> =
        line.trim_end().encode_utf16().filter(|unit| *unit != 0).take(LONGEST).chain([0]).collect();
    let source = source();
    if source.is_null() {
        // Errors are ignored, because there is no other place to report them.
        return;
    }
    // SAFETY: the source is open, and the text is NUL-terminated and valid until the call returns.
    unsafe {
        ReportEventW(source, kind, 0, TEXT, ptr::null_mut(), 1, 0, &text.as_ptr(), ptr::null());
    }
}

/// Opened once; the system closes it when the process ends.
#[allow(unsafe_code)]
fn source() -> *mut core::ffi::c_void {
    let known = SOURCE.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let name: Vec<u16> = platform::CURRENT.service().encode_utf16().chain([0]).collect();
    // SAFETY: the name is NUL-terminated and valid until the call returns.
    let opened = unsafe { RegisterEventSourceW(ptr::null(), name.as_ptr()) };
    // Two threads can each open one, which is harmless.
    SOURCE.store(opened, Ordering::Release);
    opened
}
