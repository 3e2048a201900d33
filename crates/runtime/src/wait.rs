//! Why something is not finished: every wait has a reason.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What a reconciler waits for, in the words that conditions, events, `drover why` and the dashboard show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// A short constant in CamelCase, used as the condition's reason.
    pub reason: String,
    /// The object waited for, as `Kind namespace/name`.
    pub object: String,
    /// What would end the wait.
    pub expected: String,
    /// What is seen instead.
    pub observed: String,
    /// Since when, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// What a person can do about it, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Wait {
    pub fn new(
        reason: impl Into<String>,
        object: impl Into<String>,
        expected: impl Into<String>,
        observed: impl Into<String>,
    ) -> Self {
        Self {
            reason: reason.into(),
            object: object.into(),
            expected: expected.into(),
            observed: observed.into(),
            since: None,
            remedy: None,
        }
    }

    pub fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waiting for {} to {}: {}", self.object, self.expected, self.observed)?;
        if let Some(since) = self.since {
            write!(f, " since {since}")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}
