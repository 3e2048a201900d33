//! A loop that a panic does not end: one defect must not stop, say, the garbage collection of a whole server unseen.

use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Runs what `begin` makes to its end; after a panic, from its beginning again.
pub(crate) async fn lasting<F: Future<Output = ()>>(name: &'static str, mut begin: impl FnMut() -> F) {
    while AssertUnwindSafe(begin()).catch_unwind().await.is_err() {
        tracing::error!(name, "panicked; beginning anew");
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_panics_begins_anew_and_what_ends_has_ended() {
        let mut times = 0;
        lasting("scripted", || {
            times += 1;
            let first = times == 1;
            async move { assert!(!first, "on purpose") }
        })
        .await;
        assert_eq!(times, 2);
    }
}
