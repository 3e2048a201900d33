use std::fmt;

/// The value of [`crate::keys::PLAN_STATE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanState {
    /// The server wrote a plan that was not started yet.
    Pending,
    /// The agent has started it; unchanged during retries.
    InProgress,
    /// It was applied.
    Succeeded,
    /// It failed and is not retried.
    Failed,
    /// Reserved by the original; an agent does not apply such a plan.
    Cancelled,
}

impl PlanState {
    /// Parses the value. `None` for an unknown state, whose plan must not be applied.
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

    /// The value in the secret.
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
