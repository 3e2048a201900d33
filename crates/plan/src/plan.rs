use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// What the management plane wants of one machine.
///
/// Field order and omission follow the original's Go types, because the checksum is over the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Plan {
    /// Written in this order, before any instruction runs.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub files: Vec<File>,
    /// Run once, in order; the first failure stops the rest.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub instructions: Vec<OneTimeInstruction>,
    /// Run again each period for as long as the plan stands.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub periodic_instructions: Vec<PeriodicInstruction>,
    /// Health questions, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_default")]
    pub probes: BTreeMap<String, Probe>,
    /// Why the server could not make a plan; only the server reads it.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub error: String,
}

/// One path on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct File {
    /// Base64 of the content.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub content: String,
    /// The path is a directory.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub directory: bool,
    /// Owner.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub uid: i64,
    /// Group.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub gid: i64,
    /// Absolute path.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub path: String,
    /// Octal mode, `644` or `0644`; empty for the default (0600, directories 0755).
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub permissions: String,
    /// `delete`, or empty to write.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub action: String,
    /// Server side: a change of content restarts nothing.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub dynamic: bool,
    /// Server side: a change goes to all nodes at once.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub minor: bool,
}

/// An instruction that runs once per plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OneTimeInstruction {
    /// Name, under which output is saved.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub name: String,
    /// Image whose content becomes the working directory.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub image: String,
    /// `NAME=value` entries.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub env: Vec<String>,
    /// Arguments of the command.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub args: Vec<String>,
    /// Program; empty for `run.sh` of the working directory.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub command: String,
    /// Text of a shell script to run instead of a command.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub script: String,
    /// Report the output.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub save_output: bool,
}

/// An instruction that runs again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PeriodicInstruction {
    /// Name; an instruction without one is skipped.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub name: String,
    /// Image whose content becomes the working directory.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub image: String,
    /// `NAME=value` entries.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub env: Vec<String>,
    /// Arguments of the command.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub args: Vec<String>,
    /// Program; empty for `run.sh` of the working directory.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub command: String,
    /// Text of a shell script to run instead of a command.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub script: String,
    /// Seconds between two runs; 0 means 600.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub period_seconds: i64,
    /// Report standard error too.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub save_stderr_output: bool,
}

/// A health question.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Probe {
    /// Seconds to wait after a plan was applied.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub initial_delay_seconds: i64,
    /// Seconds until no answer counts as a failure.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub timeout_seconds: i64,
    /// Successes in a row until healthy; 0 means 1.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub success_threshold: i64,
    /// Failures in a row until unhealthy; 0 means 3.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub failure_threshold: i64,
    /// The question. Go never omits a struct, so neither do we.
    #[serde(rename = "httpGet", deserialize_with = "null_default")]
    pub http_get: HttpGetAction,
}

/// A GET whose 2xx answer means healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpGetAction {
    /// http or https URL.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub url: String,
    /// Do not verify the server's certificate.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub insecure: bool,
    /// Path of a client certificate.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub client_cert: String,
    /// Path of its key.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub client_key: String,
    /// Path of a certificate authority trusted beside the system's.
    #[serde(rename = "caCert", skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub ca_cert: String,
}

/// The agent's answer to one probe. All zero (`{}`) is unhealthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProbeStatus {
    /// The threshold was reached, and failures did not reach theirs since.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub healthy: bool,
    /// Successes in a row, at most the threshold.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub success_count: i64,
    /// Failures in a row, at most the threshold.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub failure_count: i64,
}

/// The agent's answer to one periodic instruction. Nothing is omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PeriodicInstructionOutput {
    /// Name of the instruction.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    /// Standard output of the last run.
    #[serde(with = "crate::base64_bytes")]
    pub stdout: Vec<u8>,
    /// Standard error of the last run, if asked for.
    #[serde(with = "crate::base64_bytes")]
    pub stderr: Vec<u8>,
    /// Exit code of the last run.
    #[serde(deserialize_with = "null_default")]
    pub exit_code: i64,
    /// Go `UnixDate`; empty when there was none.
    #[serde(deserialize_with = "null_default")]
    pub last_successful_run_time: String,
    /// Failures in a row.
    #[serde(deserialize_with = "null_default")]
    pub failures: i64,
    /// Go `UnixDate`; empty when there was none.
    #[serde(deserialize_with = "null_default")]
    pub last_failed_run_time: String,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// Go reads `null` as "leave the zero value".
fn null_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
