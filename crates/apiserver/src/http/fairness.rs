//! A ceiling on requests in flight, so that a flood is told to come back instead of drowning everyone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::info::RequestInfo;
use crate::identity::UserInfo;
use crate::status::Status;

/// Upstream's ceilings.
const MUTATING: usize = 200;
const READ_ONLY: usize = 400;

/// Counts requests in flight.
#[derive(Default)]
pub(super) struct Fairness {
    mutating: Arc<AtomicUsize>,
    read_only: Arc<AtomicUsize>,
}

/// A place among the requests in flight; given back when dropped. A watch keeps its place only until it starts.
pub(super) struct Turn(Option<Arc<AtomicUsize>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Fairness {
    /// Takes a place or says 429. Administrators, leases and paths such as health always get one: without them
    /// nothing could be repaired, and leaders would be lost under load.
    pub(super) fn enter(&self, info: &RequestInfo, user: &UserInfo) -> Result<Turn, Status> {
        let lease = info.group == "coordination.k8s.io" && info.resource == "leases";
        if !info.is_resource || lease || user.in_group("system:masters") {
            return Ok(Turn(None));
        }
        let reading = matches!(info.verb, "get" | "list" | "watch");
        let (count, most) = if reading { (&self.read_only, READ_ONLY) } else { (&self.mutating, MUTATING) };
        let turn = Turn(Some(count.clone()));
        if count.fetch_add(1, Ordering::Relaxed) >= most {
            return Err(Status::too_many_requests("too many requests, please try again later"));
        }
        Ok(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_to_come_back_and_the_important_pass() {
        let fairness = Fairness::default();
        let user = UserInfo { name: "u".into(), ..UserInfo::default() };
        let create = RequestInfo {
            is_resource: true,
            verb: "create",
            resource: "pods".into(),
            ..RequestInfo::default()
        };
        let turns: Vec<_> = (0..MUTATING).map(|_| fairness.enter(&create, &user).unwrap()).collect();
        let refused = fairness.enter(&create, &user).err().unwrap();
        assert_eq!((refused.code, refused.details.unwrap().retry_after_seconds), (429, 1));
        let list = RequestInfo { verb: "list", ..create.clone() };
        assert!(fairness.enter(&list, &user).is_ok());
        assert!(fairness.enter(&create, &UserInfo::system_masters("a")).is_ok());
        let lease =
            RequestInfo { group: "coordination.k8s.io".into(), resource: "leases".into(), ..create.clone() };
        assert!(fairness.enter(&lease, &user).is_ok());
        drop(turns);
        assert!(fairness.enter(&create, &user).is_ok());
    }
}
