//! The command that a user runs on a server of their own.

use drover_api::management::v3::ClusterRegistrationTokenStatus;

pub use crate::registration::roles::Roles;
use crate::settings::Settings;

/// Runs the following command as root. root does not need sudo, which may not be installed. If another user has no sudo
/// either, the install script reports the missing permission.
const AS_ROOT: &str = r#"$([ "$(id -u)" -eq 0 ] || ! command -v sudo >/dev/null || echo sudo)"#;

/// Commands of a registration token, with the placeholder `{token}` for the token; empty without a server URL.
pub fn commands(settings: &Settings, cluster: &str) -> ClusterRegistrationTokenStatus {
    let server = &settings.server_url;
    if server.is_empty() {
        return ClusterRegistrationTokenStatus::default();
    }
    let manifest = format!("{server}/v3/import/{{token}}_{cluster}.yaml");
    let insecure = if settings.cacerts.trim().is_empty() { "" } else { "--insecure " };
    let node = |insecure: &str| {
        let checksum = settings.ca_checksum().map(|sum| format!(" --ca-checksum {sum}")).unwrap_or_default();
        format!(
            "curl {insecure}-fL {server}/system-agent-install.sh | {AS_ROOT} sh -s - --server {server} --label \
             'cattle.io/os=linux' --token {{token}}{checksum}"
        )
    };
    ClusterRegistrationTokenStatus {
        command: format!("kubectl apply -f {manifest}"),
        insecure_command: format!("curl --insecure -sfL {manifest} | kubectl apply -f -"),
        manifest_url: manifest,
        node_command: node(""),
        insecure_node_command: node(insecure),
        ..ClusterRegistrationTokenStatus::default()
    }
}

/// The whole command for one server: the token filled in, the roles appended. The CA is private, so the first
/// download cannot verify it; the script then checks the CA's checksum before it installs anything.
pub fn node_command(settings: &Settings, token: &str, roles: Roles) -> String {
    let commands = commands(settings, "");
    format!("{} {}", commands.insecure_node_command.replace("{token}", token), roles.flags())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_command_holds_token_checksum_and_roles() {
        let settings = Settings {
            server_url: "https://10.0.0.1:8443".into(),
            cacerts: "PEM".into(),
            ..Settings::default()
        };
        let sum = settings.ca_checksum().unwrap();
        let roles = Roles { worker: true, ..Roles::default() };
        assert_eq!(
            node_command(&settings, "tok", roles),
            format!(
                "curl --insecure -fL https://10.0.0.1:8443/system-agent-install.sh | $([ \"$(id -u)\" -eq 0 ] || ! command -v sudo >/dev/null || echo sudo) sh -s - --server \
                 https://10.0.0.1:8443 --label 'cattle.io/os=linux' --token tok --ca-checksum {sum} --worker"
            )
        );
        let stored = json!(commands(&settings, "c-m-x"));
        assert!(stored["nodeCommand"].as_str().unwrap().contains("--token {token}"));
        assert_eq!(json!(commands(&Settings::default(), "c-m-x")), json!({}));
    }
}
