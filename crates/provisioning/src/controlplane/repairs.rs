//! When plan secrets were repaired last. A machine that writes garbage again and again must not make the server write as
//! often.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use parking_lot::Mutex;

/// The least time between two repairs of one secret.
const PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// Ends of pauses by uid. Only pauses that have not ended are kept.
#[derive(Default)]
pub struct Repairs(Mutex<HashMap<String, Timestamp>>);

impl Repairs {
    /// Until when the secret is not repaired again.
    pub fn pause(&self, secret: &Secret, now: Timestamp) -> Option<Timestamp> {
        let until = *self.0.lock().get(secret.metadata.uid.as_ref()?)?;
        (until > now).then_some(until)
    }

    /// The secret was repaired.
    pub fn record(&self, secret: &Secret, now: Timestamp) {
        let (Some(uid), Ok(until)) = (&secret.metadata.uid, now.checked_add(PAUSE)) else { return };
        let mut pauses = self.0.lock();
        pauses.retain(|_, until| *until > now);
        pauses.insert(uid.clone(), until);
    }
}
