//! The script a new server runs: settings first, then the agent's install script.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use drover_api::rke::v1::EnvVar;
use sha2::{Digest, Sha256};

use crate::settings::Settings;

/// What a machine presents to register: a hash, so that the token itself is on no disk.
pub fn registration_token(service_account_token: &str) -> String {
    URL_SAFE.encode(Sha256::digest(service_account_token.as_bytes()))
}

/// What the script is made of.
pub struct Input<'a> {
    pub settings: &'a Settings,
    pub agent_env_vars: &'a [EnvVar],
    /// `dataDirectories.systemAgent`.
    pub agent_var_dir: &'a str,
    /// From [`registration_token`]; none for the script that everyone may fetch.
    pub token: Option<&'a str>,
    /// The install script.
    pub body: &'a str,
}

/// Renders the script for `sh`.
pub fn render(input: &Input<'_>) -> String {
    let settings = input.settings;
    let mut lines = vec!["#!/usr/bin/env sh".to_owned()];
    if input.token.is_some() {
        for variable in input.agent_env_vars {
            if !variable.value.is_empty() && is_name(&variable.name) {
                lines.push(format!("export {}={}", variable.name, quote(&variable.value)));
            }
        }
    }
    let chose_verify = input.agent_env_vars.iter().any(|variable| variable.name == "STRICT_VERIFY");
    let strict = if settings.agent_tls_strict { "true" } else { "false" };
    if input.token.is_none() {
        lines.push(format!("export STRICT_VERIFY=\"${{STRICT_VERIFY:-{strict}}}\""));
    } else if !chose_verify {
        lines.push(format!("export STRICT_VERIFY={}", quote(strict)));
    }
    if !input.agent_var_dir.is_empty() {
        lines.push(format!("export CATTLE_AGENT_VAR_DIR={}", quote(input.agent_var_dir)));
    }
    let fixed = |name: &str, value: &str| format!("{name}=\"{value}\"");
    // A value that is already set, by the cluster's agentEnvVars or by the user, takes precedence.
    let default = |name: &str, value: &str| format!("[ -n \"${{{name}:-}}\" ] || {}", fixed(name, value));
    if settings.serves_agent {
        lines.push(default("CATTLE_AGENT_BINARY_BASE_URL", &format!("{}/assets", settings.server_url)));
    }
    if settings.serves_images {
        lines.push(default("CATTLE_AGENT_IMAGES_FROM_SERVER", "true"));
    }
    if let Some(token) = input.token {
        // A machine's own script: server, CA and token belong together.
        lines.push(fixed("CATTLE_SERVER", &settings.server_url));
        lines.extend(settings.ca_checksum().map(|sum| fixed("CATTLE_CA_CHECKSUM", &sum)));
        lines.push(fixed("CATTLE_ROLE_NONE", "true"));
        lines.push(fixed("CATTLE_TOKEN", token));
    } else if let Some(sum) = settings.ca_checksum() {
        // Who brings a checksum has it from elsewhere, which is worth more than what came over the same wire.
        lines.push(default("CATTLE_CA_CHECKSUM", &sum));
    }
    lines.push(String::new());
    // The body's own first line would be only a comment here.
    let body =
        input.body.strip_prefix("#!").map_or(input.body, |rest| rest.split_once('\n').map_or("", |(_, b)| b));
    lines.join("\n") + body
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioning_check_19_names_are_checked_and_values_quoted() {
        let variable = |name: &str, value: &str| EnvVar { name: name.into(), value: value.into() };
        let env = [variable("a-b", "1"), variable("GOOD", "x'y"), variable("EMPTY", "")];
        let settings = Settings {
            server_url: "https://10.0.0.1:8443".into(),
            cacerts: "PEM\n\n".into(),
            ..Settings::default()
        };
        let input = Input {
            settings: &settings,
            agent_env_vars: &env,
            agent_var_dir: "",
            token: Some("tok"),
            body: "#!/bin/sh\necho install\n",
        };
        let script = render(&input);
        let sum = crate::digest::sha256_hex(["PEM\n"]);
        assert_eq!(
            script,
            format!(
                "#!/usr/bin/env sh\nexport GOOD='x'\\''y'\nexport STRICT_VERIFY='true'\n\
                 [ -n \"${{CATTLE_AGENT_BINARY_BASE_URL:-}}\" ] || \
                 CATTLE_AGENT_BINARY_BASE_URL=\"https://10.0.0.1:8443/assets\"\n\
                 [ -n \"${{CATTLE_AGENT_IMAGES_FROM_SERVER:-}}\" ] || CATTLE_AGENT_IMAGES_FROM_SERVER=\"true\"\n\
                 CATTLE_SERVER=\"https://10.0.0.1:8443\"\nCATTLE_CA_CHECKSUM=\"{sum}\"\n\
                 CATTLE_ROLE_NONE=\"true\"\nCATTLE_TOKEN=\"tok\"\necho install\n"
            )
        );
    }

    #[test]
    fn the_public_script_names_no_token_and_no_server() {
        let input = Input {
            settings: &Settings { server_url: "https://s".into(), ..Settings::default() },
            agent_env_vars: &[],
            agent_var_dir: "",
            token: None,
            body: "body\n",
        };
        let script = render(&input);
        assert!(!script.contains("CATTLE_TOKEN") && !script.contains("CATTLE_SERVER"), "{script}");
        assert!(script.ends_with("\nbody\n"));
    }

    /// What the public script hands to its body, started with these variables.
    fn understood(env: &[(&str, &str)]) -> String {
        let settings =
            Settings { server_url: "https://s".into(), cacerts: "PEM\n".into(), ..Settings::default() };
        let body = "echo $CATTLE_CA_CHECKSUM $CATTLE_AGENT_BINARY_BASE_URL $CATTLE_AGENT_IMAGES_FROM_SERVER $STRICT_VERIFY";
        let input = Input { settings: &settings, agent_env_vars: &[], agent_var_dir: "", token: None, body };
        let mut sh = std::process::Command::new("sh");
        let output =
            sh.args(["-euc", &render(&input)]).env_clear().envs(env.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    #[test]
    fn variables_of_the_caller_win_over_what_the_server_bakes_in() {
        let sum = crate::digest::sha256_hex(["PEM\n"]);
        assert_eq!(understood(&[]), format!("{sum} https://s/assets true true"));
        let own = [
            ("CATTLE_CA_CHECKSUM", "00"),
            ("CATTLE_AGENT_BINARY_BASE_URL", "https://mirror/a"),
            ("CATTLE_AGENT_IMAGES_FROM_SERVER", "false"),
            ("STRICT_VERIFY", "false"),
        ];
        assert_eq!(understood(&own), "00 https://mirror/a false false");
        // Nothing is not a choice: it would switch the pinning off.
        assert_eq!(understood(&[("CATTLE_CA_CHECKSUM", "")]), understood(&[]));
    }
}
