//! Returns freed memory to the system.
//!
//! glibc keeps freed memory in arenas, one per thread, and returns only the end of each, so after a burst of large
//! requests the process would keep its peak size. `malloc_trim` returns all free pages. It takes some milliseconds, so
//! it runs on its own thread, once after a burst of heavy requests. Large allocations are kept out of the arenas:
//! otherwise glibc would put them there after the first is freed, where they pin the memory around them.
//! In a program with another allocator, this affects only C code (`drover` uses mimalloc, which returns pages itself).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Delay after the first heavy request of a burst. Memory of later requests is returned with it or starts another
/// delay.
const TRIM_DELAY: Duration = Duration::from_secs(1);

/// Returns memory at most once per second.
#[derive(Clone, Default)]
pub(super) struct Trim {
    planned: Arc<AtomicBool>,
}

impl Trim {
    /// Schedules a trim, unless one is scheduled.
    pub(super) fn schedule(&self) {
        if self.planned.swap(true, Ordering::Relaxed) {
            return;
        }
        let planned = self.planned.clone();
        tokio::spawn(async move {
            tokio::time::sleep(TRIM_DELAY).await;
            planned.store(false, Ordering::Relaxed);
            let _ = tokio::task::spawn_blocking(trim).await;
        });
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
fn trim() {
    // SAFETY: the function only accesses the allocator's own lists, under their locks; no pointer is passed or kept.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Maps large allocations separately, so that they are returned when freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub(super) fn map_large_allocations() {
    use nix::libc::{M_MMAP_THRESHOLD, mallopt};
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: the call only stores a number, under the allocator's lock.
    ONCE.call_once(|| unsafe {
        mallopt(M_MMAP_THRESHOLD, 256 << 10);
    });
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn map_large_allocations() {}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}
