//! Freed memory goes back to the system.
//!
//! glibc keeps what was freed in arenas, one per thread, and returns only the end of each: after a burst of large requests
//! the process would stay as large as it was at the worst moment. `malloc_trim` returns every free page. It takes some
//! milliseconds, so it runs on a thread of its own, once when a burst of heavy requests is over. And large pieces stay out
//! of the arenas: glibc would put them there after the first was freed, where they keep what is around them.
//! A program with another allocator (`drover` has mimalloc, which returns pages by itself) uses glibc's only for C code.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long after the first heavy request of a burst. Later ones of the same burst are returned with it or start another.
const AFTER: Duration = Duration::from_secs(1);

/// Returns memory, at most once per second.
#[derive(Clone, Default)]
pub(super) struct Trim {
    planned: Arc<AtomicBool>,
}

impl Trim {
    /// Plans a return, unless one is planned.
    pub(super) fn soon(&self) {
        if self.planned.swap(true, Ordering::Relaxed) {
            return;
        }
        let planned = self.planned.clone();
        tokio::spawn(async move {
            tokio::time::sleep(AFTER).await;
            planned.store(false, Ordering::Relaxed);
            let _ = tokio::task::spawn_blocking(give_back).await;
        });
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
fn give_back() {
    // SAFETY: the function only looks at the allocator's own lists, under their locks; no pointer is given or kept.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Large pieces of memory are mapped on their own, and go back when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub(super) fn keep_large_pieces_apart() {
    use nix::libc::{M_MMAP_THRESHOLD, mallopt};
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: the call only stores a number, under the allocator's lock.
    ONCE.call_once(|| unsafe {
        mallopt(M_MMAP_THRESHOLD, 256 << 10);
    });
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn keep_large_pieces_apart() {}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}
