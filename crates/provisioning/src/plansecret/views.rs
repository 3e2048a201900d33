//! Plan secrets as they were parsed: once per version, shared by every controller.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use parking_lot::Mutex;

use super::state::NodeState;

/// At most so many are kept: those of clusters that change at the moment. Others are parsed again when they do.
const MOST: usize = 1024;

/// Parsed plan secrets by uid, each with the resourceVersion that it was parsed from.
#[derive(Default)]
pub struct Views {
    parsed: Mutex<HashMap<String, (String, Arc<NodeState>)>>,
}

impl Views {
    /// What a secret says. Parsed only if this version of it has not been seen yet.
    pub fn of(&self, secret: &Secret) -> Arc<NodeState> {
        let (Some(uid), Some(version)) = (&secret.metadata.uid, &secret.metadata.resource_version) else {
            return Arc::new(NodeState::of(secret));
        };
        if let Some((seen, state)) = self.parsed.lock().get(uid)
            && seen == version
        {
            return state.clone();
        }
        let state = Arc::new(NodeState::of(secret));
        let mut parsed = self.parsed.lock();
        if parsed.len() >= MOST {
            parsed.clear();
        }
        parsed.insert(uid.clone(), (version.clone(), state.clone()));
        state
    }

    /// Forgets a secret that was deleted.
    pub fn forget(&self, secret: &Secret) {
        if let Some(uid) = &secret.metadata.uid {
            self.parsed.lock().remove(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(uid: usize, version: usize) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.uid = Some(uid.to_string());
        secret.metadata.resource_version = Some(version.to_string());
        secret
    }

    #[test]
    fn a_version_is_parsed_once_and_a_deleted_secret_is_forgotten() {
        let views = Views::default();
        let first = views.of(&secret(1, 1));
        assert!(Arc::ptr_eq(&first, &views.of(&secret(1, 1))));
        assert!(!Arc::ptr_eq(&first, &views.of(&secret(1, 2))));
        views.forget(&secret(1, 2));
        assert!(views.parsed.lock().is_empty());
        for uid in 0..2 * MOST {
            views.of(&secret(uid, 1));
        }
        assert!(views.parsed.lock().len() <= MOST);
    }
}
