use std::fmt;

/// Value of [`crate::keys::PLAN_STATE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanState {
    /// The server wrote a plan that nobody started.
    Pending,
    /// The agent has begun; it stays so over its retries.
    InProgress,
    /// Applied.
    Succeeded,
    /// Given up.
    Failed,
    /// Reserved by the original; an agent leaves such a plan alone.
    Cancelled,
}

impl PlanState {
    /// Reads the key's bytes. `None` for anything unknown: the caller must not apply what it does not understand.
    pub fn parse(value: &[u8]) -> Option<Self> {
        Some(match value {
            b"pending" => Self::Pending,
            b"in-progress" => Self::InProgress,
            b"succeeded" => Self::Succeeded,
            b"failed" => Self::Failed,
            b"cancelled" => Self::Cancelled,
            _ => return None,
        })
    }

    /// The spelling in the secret.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in-progress",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for PlanState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
