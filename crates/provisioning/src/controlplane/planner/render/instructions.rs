//! What a plan runs: the installer, and reports of an etcd-only init node.

use drover_plan::{File, OneTimeInstruction, PeriodicInstruction};

use super::super::entry::Entry;
use super::ClusterInput;
use crate::digest::sha256_hex;
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// Environment variable whose change restarts the distribution.
pub const RESTART_STAMP: &str = "RESTART_STAMP";
/// Environment variable whose change means a drain before.
pub const DRAIN_HASH: &str = "DRAIN_HASH";

/// Runs a command at most once per attempt of a plan. Unlike the original it records the attempt after the
/// command succeeded, so that a crash in the middle repeats the work instead of skipping it.
pub const IDEMPOTENT_SCRIPT: &str = r#"#!/bin/sh
# Usage: idempotent.sh KEY VALUE_HASH COMMAND_HASH COMMAND PROVISIONING_DIR [ARGUMENT...]
key=$1 value=$2 hash=$3 command=$4 dir=$5
shift 5
done_dir="$dir/idempotence/$key/$hash/$value"
done_file="$done_dir/last-attempt"
attempt=${CATTLE_AGENT_ATTEMPT_NUMBER:-1}
if [ -f "$done_file" ] && [ "$(cat "$done_file")" = "$attempt" ]; then
    echo "$key was done in attempt $attempt"
    exit 0
fi
mkdir -p "$done_dir" || exit 1
"$command" "$@" || exit $?
printf '%s' "$attempt" > "$done_file.tmp" && mv "$done_file.tmp" "$done_file"
"#;

/// The install instruction. `drain_config` is the configuration without what re-pointing a node changes.
pub fn install(
    input: &ClusterInput,
    entry: &Entry,
    files: &[File],
    drain_config: &[u8],
) -> OneTimeInstruction {
    let image = installer_image(input);
    let config_path = input.runtime.config_file();
    let stamp = stamp(input, &image, files.iter().map(|file| (file, file.content.clone())));
    let drain_hash = stamp_for_drain(input, &image, files, &config_path, drain_config);
    let mut env = vec![format!("{RESTART_STAMP}={stamp}"), format!("{DRAIN_HASH}={drain_hash}")];
    for variable in &input.spec.agent_env_vars {
        if !variable.value.is_empty() {
            env.push(format!("{}={}", variable.name, variable.value));
        }
    }
    let runtime = input.runtime.upper();
    env.push(format!("{runtime}_DATA_DIR={}", input.data_dir));
    if entry.is_only_worker() {
        env.push(format!("INSTALL_{runtime}_EXEC=agent"));
    }
    OneTimeInstruction {
        name: "install".to_owned(),
        image,
        env,
        args: vec!["-c".to_owned(), "run.sh".to_owned()],
        command: "sh".to_owned(),
        ..OneTimeInstruction::default()
    }
}

/// `<prefix><runtime>:<version with + as ->`, below the private registry if there is one.
pub fn installer_image(input: &ClusterInput) -> String {
    let tag = input.spec.kubernetes_version.replace('+', "-");
    let image = format!("{}{}:{tag}", input.settings.system_agent_installer_image, input.runtime.name());
    match input.settings.system_default_registry.as_str() {
        "" => image,
        registry => format!("{registry}/{image}"),
    }
}

fn stamp<'a>(input: &ClusterInput, image: &str, files: impl Iterator<Item = (&'a File, String)>) -> String {
    let mut parts = vec![input.spec.config.provision_generation.to_string(), image.to_owned()];
    for (file, content) in files.filter(|(file, _)| !file.dynamic) {
        parts.push(file.path.clone());
        parts.push(content);
    }
    parts.push(input.config_generation.to_string());
    sha256_hex(parts)
}

fn stamp_for_drain(
    input: &ClusterInput,
    image: &str,
    files: &[File],
    config_path: &str,
    drain_config: &[u8],
) -> String {
    let contents = files.iter().map(|file| {
        let content = if file.path == config_path {
            BASE64_STANDARD.encode(drain_config)
        } else {
            file.content.clone()
        };
        (file, content)
    });
    stamp(input, image, contents)
}

/// The value of an environment variable of the plan's install instruction.
pub fn install_env<'a>(plan: &'a drover_plan::Plan, name: &str) -> Option<&'a str> {
    let install = plan.instructions.iter().find(|instruction| instruction.name == "install")?;
    install.env.iter().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// An etcd-only init node has no Node object that tells its address, so it reports it itself.
pub fn etcd_only_reports(input: &ClusterInput) -> Vec<PeriodicInstruction> {
    let script = format!(
        "i=1; while [ $i -lt 100 ]; do out=$(curl -s --cacert {data}/server/tls/server-ca.crt \
         https://localhost:{port}/db/info); case $out in *clientURLs*) echo \"$out\"; exit 0;; esac; \
         i=$((i+1)); sleep 5; done; exit 1",
        data = input.data_dir,
        port = input.runtime.supervisor_port(),
    );
    let name_file = format!("cat {}/server/db/etcd/name", input.data_dir);
    [("capture-address", script), ("etcd-name", name_file)]
        .into_iter()
        .map(|(name, script)| PeriodicInstruction {
            name: name.to_owned(),
            command: "sh".to_owned(),
            args: vec!["-c".to_owned(), script],
            period_seconds: 600,
            ..PeriodicInstruction::default()
        })
        .collect()
}
