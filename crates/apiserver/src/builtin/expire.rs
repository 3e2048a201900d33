//! Events live for an hour.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::objects::{Context, DeleteOptions, ListOptions, Objects};
use crate::status::Status;

const LIFETIME: SignedDuration = SignedDuration::from_hours(1);
const EVERY: Duration = Duration::from_secs(60);

/// Removes old events for as long as it is polled. Writes nothing when nothing is old.
pub async fn expire_events(objects: Objects) {
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = expire_once(&objects).await {
            tracing::warn!(%error, "old events could not be removed, will try again");
        }
    }
}

async fn expire_once(objects: &Objects) -> Result<(), Status> {
    let Some(resource) = objects.registry().resource("", "v1", "events") else { return Ok(()) };
    let now = objects.clock().now();
    let context = Context::internal("event-expiry");
    let page = objects.list(&resource, None, &ListOptions::default()).await?;
    for event in page.items {
        if !is_old(&event, now) {
            continue;
        }
        let options = DeleteOptions {
            resource_version: Some(event.revision().to_string()),
            ..DeleteOptions::default()
        };
        let key = event.key();
        match objects.delete(&context, &resource, key.namespace(), key.name(), &options).await {
            Ok(_) => {}
            // Touched or gone in the meantime: not ours any more.
            Err(status) if status.is_not_found() || status.is_conflict() => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}

/// The lifetime runs from the last write, of which the time in the event is the best witness.
fn is_old(event: &crate::storage::Version, now: Timestamp) -> bool {
    let object = event.decode();
    let series = object.get("series").and_then(|series| series.get("lastObservedTime"));
    let times = [
        series,
        object.get("lastTimestamp"),
        object.get("eventTime"),
        object["metadata"].get("creationTimestamp"),
    ];
    let newest =
        times.into_iter().flatten().filter_map(|time| time.as_str()?.parse::<Timestamp>().ok()).max();
    newest.is_some_and(|newest| now.duration_since(newest) > LIFETIME)
}
