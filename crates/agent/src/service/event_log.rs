//! Windows' event log, where a service without a console says what it does.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use tracing::Level;
use windows_sys::Win32::System::EventLog::{
    EVENTLOG_ERROR_TYPE, EVENTLOG_INFORMATION_TYPE, EVENTLOG_WARNING_TYPE, RegisterEventSourceW, ReportEventW,
};

use crate::platform;

/// The message that is nothing but its text, in the file of messages that an installer names for this source.
const TEXT: u32 = 1;
/// How much of a line the event log takes, in units of UTF-16.
const LONGEST: usize = 31_000;

static SOURCE: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(ptr::null_mut());

/// One line, as an event of the source that is named like the service.
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
        // Nobody is left to be told.
        return;
    }
    // SAFETY: the source is open, and the one text is terminated and lives until the call returns.
    unsafe {
        ReportEventW(source, kind, 0, TEXT, ptr::null_mut(), 1, 0, &text.as_ptr(), ptr::null());
    }
}

/// Opened once; the system closes it with the process.
#[allow(unsafe_code)]
fn source() -> *mut core::ffi::c_void {
    let known = SOURCE.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let name: Vec<u16> = platform::CURRENT.service().encode_utf16().chain([0]).collect();
    // SAFETY: the name is terminated and lives until the call returns.
    let opened = unsafe { RegisterEventSourceW(ptr::null(), name.as_ptr()) };
    // Two threads may each open one, which does no harm.
    SOURCE.store(opened, Ordering::Release);
    opened
}
