//! Work without which the rest is to stop, too: a program that merely seems to run helps nobody.

use tokio_util::sync::CancellationToken;

/// Does the work; cancels `stop` should it panic, so that whoever started everything can say so and end.
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
