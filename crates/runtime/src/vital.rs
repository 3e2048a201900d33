//! Work whose failure must stop the whole program.

use tokio_util::sync::CancellationToken;

/// Does the work; if it panics, cancels `stop`, so that the rest can report the error and stop.
pub async fn vital(work: impl Future<Output = ()>, stop: CancellationToken) {
    let panicked = stop.drop_guard();
    work.await;
    panicked.disarm();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_stops_the_others_and_an_end_does_not() {
        let stop = CancellationToken::new();
        vital(async {}, stop.clone()).await;
        assert!(!stop.is_cancelled());
        let panicked = tokio::spawn(vital(async { panic!("on purpose") }, stop.clone()));
        assert!(panicked.await.is_err() && stop.is_cancelled());
    }
}
