//! The agent that the management plane serves, announced in the plan secret so that agents can upgrade themselves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The annotation of a plan secret with an [`AgentOffer`] as JSON. Agents that do not support it ignore it.
pub const AGENT_OFFER: &str = "drover.io/agent";

/// The annotation of the Secret `cattle-system/cattle-credentials-*` with which a manager asks agents on control plane
/// nodes to open the cluster's tunnel. Rancher does not set it: there a Deployment opens the tunnel, and the agent must
/// not.
pub const AGENT_TUNNEL: &str = "drover.io/agent-tunnel";

/// The agents that a server has below `/assets/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentOffer {
    /// The lowercase hex SHA-256 of the program by architecture, with the names that Go uses (`amd64`, `arm64`).
    pub sha256: BTreeMap<String, String>,
}

impl AgentOffer {
    /// The value of the annotation. Equal offers have equal bytes, so that it is written only once.
    pub fn to_text(&self) -> String {
        // Serializing a map of strings cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the value of the annotation. Values that are not a SHA-256 are ignored.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut offer: Self = serde_json::from_str(text).ok()?;
        offer.sha256.retain(|_, sum| {
            sum.len() == 64 && sum.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        Some(offer)
    }

    /// The file name of the program for an architecture, below `/assets/`.
    pub fn asset(arch: &str) -> String {
        format!("drover-agent-{arch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_survives_a_round_trip_and_invalid_values_are_ignored() {
        let sum = crate::checksum(b"agent");
        let offer = AgentOffer { sha256: [("amd64".to_owned(), sum.clone())].into() };
        assert_eq!(offer.to_text(), format!(r#"{{"sha256":{{"amd64":"{sum}"}}}}"#));
        assert_eq!(AgentOffer::from_text(&offer.to_text()), Some(offer));
        let other = AgentOffer::from_text(r#"{"sha256":{"amd64":"ABC","arm64":""},"later":1}"#);
        assert_eq!(other, Some(AgentOffer::default()));
        assert_eq!(AgentOffer::from_text("latest"), None);
    }
}
