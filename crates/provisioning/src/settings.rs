//! The server's settings that provisioning depends on, as one value.

use drover_plan::AgentOffer;
use jiff::SignedDuration;

/// Settings as the server knows them. Names follow the original's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where machines and agents reach the server, without a trailing slash.
    pub server_url: String,
    /// Where the server's own parts reach it; kubeconfigs of clusters point there.
    pub internal_server_url: String,
    /// PEM of the authority that signed the server's certificate; empty when the system store suffices.
    pub cacerts: String,
    /// Agents verify the server with `cacerts` only.
    pub agent_tls_strict: bool,
    /// The server offers the agent's binary below `/assets`.
    pub serves_agent: bool,
    /// Which agent that is; agents that run another replace themselves by it.
    pub agent_offer: AgentOffer,
    /// The server offers installer images below `/v2`.
    pub serves_images: bool,
    pub system_agent_installer_image: String,
    pub system_default_registry: String,
    pub machine_provision_image: String,
    pub machine_provision_image_pull_policy: String,
    /// How long a machine whose creation failed is kept before it is replaced.
    pub delete_machine_on_failure_after: SignedDuration,
    /// A create or remove Job may run this long.
    pub machine_job_deadline: SignedDuration,
    /// A bootstrap token works this long after its first use.
    pub bootstrap_token_short_ttl: SignedDuration,
    /// A bootstrap token works this long if it is never used.
    pub bootstrap_token_long_ttl: SignedDuration,
    /// `HTTP_PROXY` and the like, handed to drivers.
    pub proxy_env: Vec<(String, String)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            server_url: String::new(),
            internal_server_url: String::new(),
            cacerts: String::new(),
            agent_tls_strict: true,
            serves_agent: true,
            agent_offer: AgentOffer::default(),
            serves_images: true,
            system_agent_installer_image: "rancher/system-agent-installer-".to_owned(),
            system_default_registry: String::new(),
            machine_provision_image: "drover/machine".to_owned(),
            machine_provision_image_pull_policy: "IfNotPresent".to_owned(),
            delete_machine_on_failure_after: SignedDuration::ZERO,
            machine_job_deadline: SignedDuration::from_mins(30),
            bootstrap_token_short_ttl: SignedDuration::from_secs(30),
            bootstrap_token_long_ttl: SignedDuration::from_mins(30),
            proxy_env: Vec::new(),
        }
    }
}

impl Settings {
    /// Hex SHA-256 of the authority's PEM with exactly one newline at its end; none without an authority.
    pub fn ca_checksum(&self) -> Option<String> {
        let pem = self.cacerts.trim();
        (!pem.is_empty()).then(|| crate::digest::sha256_hex([pem, "\n"]))
    }
}
