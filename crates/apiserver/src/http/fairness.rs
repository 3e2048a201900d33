//! Limits the requests in flight, so that the excess of a flood gets 429 and other clients are still served.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::info::RequestInfo;
use crate::identity::UserInfo;
use crate::status::Status;

/// Upstream's limits.
const MUTATING: usize = 200;
const READ_ONLY: usize = 400;

/// Counts requests in flight.
#[derive(Default)]
pub(super) struct Fairness {
    mutating: Arc<AtomicUsize>,
    read_only: Arc<AtomicUsize>,
}

/// Counts one request in flight until it is dropped. A watch counts only until it starts.
pub(super) struct Permit(Option<Arc<AtomicUsize>>);

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Fairness {
    /// Admits a request or returns 429. Requests of administrators, for leases and for paths such as health are always
    /// admitted: without them nothing could be repaired, and leaders would lose their leases under load.
    pub(super) fn enter(&self, info: &RequestInfo, user: &UserInfo) -> Result<Permit, Status> {
        let lease = info.group == "coordination.k8s.io" && info.resource == "leases";
        if !info.is_resource || lease || user.in_group("system:masters") {
            return Ok(Permit(None));
        }
        let reading = matches!(info.verb, "get" | "list" | "watch");
        let (count, most) = if reading { (&self.read_only, READ_ONLY) } else { (&self.mutating, MUTATING) };
        let turn = Permit(Some(count.clone()));
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
    fn a_flood_gets_429_and_important_requests_are_admitted() {
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
