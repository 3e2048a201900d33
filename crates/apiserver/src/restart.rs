//! Restarts a loop after a panic, so that one defect does not stop, for example, garbage collection for good.

use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

pub(crate) const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Runs the future of `begin` to its end; after a panic, calls `begin` again.
pub(crate) async fn restart_after_panic<F: Future<Output = ()>>(
    name: &'static str,
    mut begin: impl FnMut() -> F,
) {
    while AssertUnwindSafe(begin()).catch_unwind().await.is_err() {
        tracing::error!(name, "panicked; restarting");
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn restarts_after_a_panic_but_not_after_a_normal_end() {
        let mut times = 0;
        restart_after_panic("scripted", || {
            times += 1;
            let first = times == 1;
            async move { assert!(!first, "panic of the test") }
        })
        .await;
        assert_eq!(times, 2);
    }
}
