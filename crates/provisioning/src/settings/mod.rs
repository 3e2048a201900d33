//! The server's settings that provisioning depends on, as one value; [`current`] has those of now.

pub mod current;

use drover_plan::AgentOffer;
use jiff::SignedDuration;

use crate::init::pools::parse_duration;
pub use current::CurrentSettings;

/// Settings as the server knows them. Names follow the original's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where machines and agents reach the server, without a trailing slash.
    pub server_url: String,
    /// Where the server's own parts reach it; kubeconfigs of clusters point there.
    pub internal_server_url: String,
    /// PEM of the authority that signed the server's certificate; empty when the system store suffices.
    pub cacerts: String,
    /// The same for `internal_server_url`; empty when it is the same.
    pub internal_cacerts: String,
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
    /// Registration tokens that are bound to no roles, as Rancher's are, register machines.
    pub registration_unscoped_tokens: bool,
    /// A registration token alone opens the tunnel of a provisioned cluster, as long as no machine has registered it.
    pub tunnel_registration_token: bool,
    /// `HTTP_PROXY` and the like, handed to drivers.
    pub proxy_env: Vec<(String, String)>,
    /// Limits of connections to the server's port.
    pub connections: Connections,
    /// How many Jobs that create or delete machines run at once; without one, it depends on the number of cores.
    pub machine_job_concurrency: Option<u32>,
}

/// Limits of connections to the server's port; where one is not set, the port has its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// How many unauthenticated ones may be open: from one address, and in total.
    pub per_address: Option<u32>,
    pub total: Option<u32>,
    /// How long a TLS handshake may take.
    pub handshake: Option<SignedDuration>,
    /// How long the first request may take to come, and the headers of any.
    pub headers: Option<SignedDuration>,
    /// How long a connection is kept between two requests.
    pub idle: Option<SignedDuration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            server_url: String::new(),
            internal_server_url: String::new(),
            cacerts: String::new(),
            internal_cacerts: String::new(),
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
            registration_unscoped_tokens: true,
            tunnel_registration_token: false,
            proxy_env: Vec::new(),
            connections: Connections::default(),
            machine_job_concurrency: None,
        }
    }
}

/// Why a Setting changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Nothing depends on it.
    Unknown,
    /// What its value should be.
    Senseless(String),
}

impl Settings {
    /// Takes over the value of a `management.cattle.io/v3` Setting, by the original's names.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Refused> {
        let value = value.trim();
        match name {
            "server-url" => self.server_url = url(value)?,
            "internal-server-url" => self.internal_server_url = url(value)?,
            "cacerts" => self.cacerts = authority(value)?,
            "internal-cacerts" => self.internal_cacerts = authority(value)?,
            "agent-tls-mode" => {
                self.agent_tls_strict = one_of(value, &["strict", "system-store"])? == "strict";
            }
            "system-agent-installer-image" => self.system_agent_installer_image = image(value)?,
            "system-default-registry" => self.system_default_registry = image(value)?,
            "machine-provision-image" => self.machine_provision_image = image(value)?,
            "machine-provision-image-pull-policy" => {
                self.machine_provision_image_pull_policy =
                    one_of(value, &["Always", "IfNotPresent", "Never"])?;
            }
            "delete-machine-on-failure-after" => self.delete_machine_on_failure_after = duration(value)?,
            "system-agent-installer-token-short-ttl" => self.bootstrap_token_short_ttl = duration(value)?,
            "system-agent-installer-token-long-ttl" => self.bootstrap_token_long_ttl = duration(value)?,
            "registration-unscoped-tokens" => {
                self.registration_unscoped_tokens = one_of(value, &["true", "false"])? == "true";
            }
            "machine-job-concurrency" => self.machine_job_concurrency = Some(jobs(value)?),
            "connections-per-address" => self.connections.per_address = Some(count(value)?),
            "connections-total" => self.connections.total = Some(count(value)?),
            "connection-handshake-timeout" => self.connections.handshake = Some(timeout(value)?),
            "connection-header-timeout" => self.connections.headers = Some(timeout(value)?),
            "connection-idle-timeout" => self.connections.idle = Some(timeout(value)?),
            "tunnel-registration-token" => {
                self.tunnel_registration_token = one_of(value, &["true", "false"])? == "true";
            }
            _ => return Err(Refused::Unknown),
        }
        Ok(())
    }

    /// The authority behind `internal_server_url`.
    pub fn internal_authority(&self) -> &str {
        if self.internal_cacerts.is_empty() { &self.cacerts } else { &self.internal_cacerts }
    }

    /// Hex SHA-256 of the authority's PEM with exactly one newline at its end; none without an authority.
    pub fn ca_checksum(&self) -> Option<String> {
        let pem = self.cacerts.trim();
        (!pem.is_empty()).then(|| crate::digest::sha256_hex([pem, "\n"]))
    }
}

fn senseless<T>(value: &str, wanted: &str) -> Result<T, Refused> {
    let shown: String = value.chars().take(80).collect();
    Err(Refused::Senseless(format!("{shown:?} is not {wanted}")))
}

/// It goes into scripts, so it may hold nothing that a shell would read.
fn url(value: &str) -> Result<String, Refused> {
    let rest = value.strip_prefix("https://").unwrap_or_default().trim_end_matches('/');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/[]%".contains(&byte);
    if rest.is_empty() || !rest.bytes().all(plain) {
        return senseless(value, "a URL like https://drover.example.com:8443");
    }
    Ok(format!("https://{rest}"))
}

fn authority(value: &str) -> Result<String, Refused> {
    if value.starts_with("-----BEGIN CERTIFICATE-----") && value.ends_with("-----END CERTIFICATE-----") {
        return Ok(value.to_owned());
    }
    senseless(value, "a certificate in PEM form")
}

fn image(value: &str) -> Result<String, Refused> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/@".contains(&byte);
    if value.contains("://") || !value.bytes().all(plain) {
        return senseless(value, "a name like registry.example.com/name");
    }
    Ok(value.trim_end_matches('/').to_owned())
}

fn one_of(value: &str, words: &[&str]) -> Result<String, Refused> {
    if words.contains(&value) { Ok(value.to_owned()) } else { senseless(value, &words.join(" or ")) }
}

fn duration(value: &str) -> Result<SignedDuration, Refused> {
    parse_duration(value).map_or_else(|| senseless(value, "a duration like 30s or 10m"), Ok)
}

/// With fewer, even the administrator could not connect to raise the number again.
fn count(value: &str) -> Result<u32, Refused> {
    match value.parse() {
        Ok(count @ 8..=1_000_000) => Ok(count),
        _ => senseless(value, "a number from 8 to 1000000"),
    }
}

fn jobs(value: &str) -> Result<u32, Refused> {
    match value.parse() {
        Ok(count @ 1..=10_000) => Ok(count),
        _ => senseless(value, "a number from 1 to 10000"),
    }
}

fn timeout(value: &str) -> Result<SignedDuration, Refused> {
    let (least, most) = (SignedDuration::from_secs(1), SignedDuration::from_hours(24));
    let parsed = parse_duration(value).filter(|timeout| (least..=most).contains(timeout));
    parsed.map_or_else(|| senseless(value, "a duration like 30s or 10m, from 1s to 24h"), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_strictly_because_scripts_and_plans_are_made_of_them() {
        let pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----";
        for (name, good, bad) in [
            ("server-url", "https://[fd00::1]:8443/", "https://x\"; reboot; \""),
            ("internal-server-url", "https://10.0.0.1", "http://10.0.0.1"),
            ("cacerts", pem, "PEM"),
            ("internal-cacerts", pem, "-----BEGIN CERTIFICATE-----"),
            ("agent-tls-mode", "system-store", "lax"),
            ("system-agent-installer-image", "mirror.example/rancher/system-agent-installer-", "a b"),
            ("system-default-registry", "registry.example:5000", "https://registry.example"),
            ("machine-provision-image", "drover/machine:v1", "$(reboot)"),
            ("machine-provision-image-pull-policy", "Always", "always"),
            ("delete-machine-on-failure-after", "1h30m", "soon"),
            ("system-agent-installer-token-short-ttl", "1m", "-1m"),
            ("system-agent-installer-token-long-ttl", "2h", "2"),
            ("registration-unscoped-tokens", "false", "off"),
            ("connections-per-address", "64", "0"),
            ("machine-job-concurrency", "12", "0"),
            ("connections-total", "5000", "many"),
            ("connection-handshake-timeout", "5s", "0s"),
            ("connection-header-timeout", "1m", "soon"),
            ("connection-idle-timeout", "10m", "25h"),
            ("tunnel-registration-token", "true", "yes"),
        ] {
            let mut settings = Settings::default();
            assert_eq!(settings.set(name, good), Ok(()), "{name}");
            assert_ne!(settings, Settings::default(), "{name} has an effect");
            let before = settings.clone();
            assert!(matches!(settings.set(name, bad), Err(Refused::Senseless(_))), "{name} {bad}");
            assert_eq!(settings, before, "{name}");
        }
        assert_eq!(Settings::default().set("brand", "x"), Err(Refused::Unknown));
    }
}
