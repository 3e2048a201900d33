//! Which agent the management plane serves, told beside the plan so that agents can replace themselves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Annotation of a plan secret that holds an [`AgentOffer`] as JSON. Agents that do not know it ignore it.
pub const AGENT_OFFER: &str = "drover.io/agent";

/// Annotation of the Secret `cattle-system/cattle-credentials-*` by which a manager asks agents on control plane nodes to
/// carry the cluster's tunnel. Rancher's has none: there a Deployment carries it, and the agent keeps out of its way.
pub const AGENT_TUNNEL: &str = "drover.io/agent-tunnel";

/// The agent that a server has below `/assets/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentOffer {
    /// Lowercase hex SHA-256 of the program, by architecture as Go names it (`amd64`, `arm64`).
    pub sha256: BTreeMap<String, String>,
}

impl AgentOffer {
    /// The annotation's value. Always the same bytes for the same offer, so that it is written once.
    pub fn to_text(&self) -> String {
        // A map of strings can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the annotation's value. What is no SHA-256 is no offer.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut offer: Self = serde_json::from_str(text).ok()?;
        offer.sha256.retain(|_, sum| {
            sum.len() == 64 && sum.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        Some(offer)
    }

    /// Name of the program for an architecture, below `/assets/`.
    pub fn asset(arch: &str) -> String {
        format!("drover-agent-{arch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_reads_as_it_was_written_and_nonsense_is_no_offer() {
        let sum = crate::checksum(b"agent");
        let offer = AgentOffer { sha256: [("amd64".to_owned(), sum.clone())].into() };
        assert_eq!(offer.to_text(), format!(r#"{{"sha256":{{"amd64":"{sum}"}}}}"#));
        assert_eq!(AgentOffer::from_text(&offer.to_text()), Some(offer));
        let other = AgentOffer::from_text(r#"{"sha256":{"amd64":"ABC","arm64":""},"later":1}"#);
        assert_eq!(other, Some(AgentOffer::default()));
        assert_eq!(AgentOffer::from_text("latest"), None);
    }
}
