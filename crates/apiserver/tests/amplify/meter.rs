//! Counts the memory of this process, byte by byte, so that an amplifying request fails its test before the host runs
//! out of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

/// A larger allocation is rejected, which aborts the test process.
const MAX_TOTAL: usize = 3 << 30;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn grown(by: usize) -> bool {
    let live = LIVE.fetch_add(by, Ordering::Relaxed) + by;
    PEAK.fetch_max(live, Ordering::Relaxed);
    if live > MAX_TOTAL {
        LIVE.fetch_sub(by, Ordering::Relaxed);
    }
    live <= MAX_TOTAL
}

// SAFETY: the system's allocator provides all memory, with the caller's layout; this only adds numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !grown(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size() && !grown(size - layout.size()) {
            return std::ptr::null_mut();
        }
        if size < layout.size() {
            LIVE.fetch_sub(layout.size() - size, Ordering::Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs the tests of this binary one at a time, because the counts are those of the whole process.
pub(crate) async fn exclusive() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::const_new(());
    ONE.lock().await
}

/// The resources that some work used.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The peak, minus the memory in use before.
    pub(crate) peak: usize,
    pub(crate) time: Duration,
}

/// Starts to measure.
pub(crate) struct Meter {
    before: usize,
    since: Instant,
}

impl Meter {
    pub(crate) fn start() -> Self {
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        Self { before, since: Instant::now() }
    }

    pub(crate) fn taken(&self) -> Taken {
        let peak = PEAK.load(Ordering::Relaxed).saturating_sub(self.before);
        Taken { peak, time: self.since.elapsed() }
    }
}
