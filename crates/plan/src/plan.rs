use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// The desired state of one machine.
///
/// The order and omission of fields follow the original's Go types, because the checksum is computed from the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Plan {
    /// Written in this order, before any instruction runs.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub files: Vec<File>,
    /// Run once, in order; the first failure stops the rest.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub instructions: Vec<OneTimeInstruction>,
    /// Run repeatedly, once per period, as long as the plan is current.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub periodic_instructions: Vec<PeriodicInstruction>,
    /// Health checks, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_default")]
    pub probes: BTreeMap<String, Probe>,
    /// Why the server could not create a plan; read only by the server.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub error: String,
}

/// A file or directory on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct File {
    /// The content in base64.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub content: String,
    /// Whether the path is a directory.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub directory: bool,
    /// The owner's uid.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub uid: i64,
    /// The group's gid.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub gid: i64,
    /// The absolute path.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub path: String,
    /// The octal mode, `644` or `0644`; empty for the default (0600, directories 0755).
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub permissions: String,
    /// `delete`, or empty to write.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub action: String,
    /// Server side: changed content does not cause a restart.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub dynamic: bool,
    /// Server side: a change is sent to all nodes at once.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub minor: bool,
}

/// An instruction that runs once per plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OneTimeInstruction {
    /// The name under which its output is saved.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub name: String,
    /// The image whose content becomes the working directory.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub image: String,
    /// `NAME=value` entries.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub env: Vec<String>,
    /// The arguments of the command.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub args: Vec<String>,
    /// The program; empty for `run.sh` in the working directory.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub command: String,
    /// A shell script to run instead of a command.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub script: String,
    /// Whether to report the output.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub save_output: bool,
}

/// An instruction that runs repeatedly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PeriodicInstruction {
    /// The name; an instruction without a name is skipped.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub name: String,
    /// The image whose content becomes the working directory.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub image: String,
    /// `NAME=value` entries.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub env: Vec<String>,
    /// The arguments of the command.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub args: Vec<String>,
    /// The program; empty for `run.sh` in the working directory.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub command: String,
    /// A shell script to run instead of a command.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub script: String,
    /// The seconds between two runs; 0 means 600.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub period_seconds: i64,
    /// Whether to report standard error too.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub save_stderr_output: bool,
}

/// A health check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Probe {
    /// The seconds to wait after a plan was applied.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub initial_delay_seconds: i64,
    /// The timeout in seconds.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub timeout_seconds: i64,
    /// The consecutive successes until it is healthy; 0 means 1.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub success_threshold: i64,
    /// The consecutive failures until it is unhealthy; 0 means 3.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub failure_threshold: i64,
    /// The request. Go never omits a struct, so it is always written.
    #[serde(rename = "httpGet", deserialize_with = "null_default")]
    pub http_get: HttpGetAction,
}

/// A GET request; a 2xx response means healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpGetAction {
    /// An http or https URL.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub url: String,
    /// Do not verify the server's certificate.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub insecure: bool,
    /// The path of a client certificate.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub client_cert: String,
    /// The path of its key.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub client_key: String,
    /// The path of a CA to trust in addition to the system's.
    #[serde(rename = "caCert", skip_serializing_if = "String::is_empty", deserialize_with = "null_default")]
    pub ca_cert: String,
}

/// The result of a probe. All zero (`{}`) is unhealthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProbeStatus {
    /// The success threshold was reached, and the failure threshold was not reached since.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub healthy: bool,
    /// The consecutive successes, at most the threshold.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub success_count: i64,
    /// The consecutive failures, at most the threshold.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub failure_count: i64,
}

/// The result of a periodic instruction. No field is omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PeriodicInstructionOutput {
    /// The name of the instruction.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    /// The standard output of the last run.
    #[serde(with = "crate::base64_bytes")]
    pub stdout: Vec<u8>,
    /// The standard error of the last run, if requested.
    #[serde(with = "crate::base64_bytes")]
    pub stderr: Vec<u8>,
    /// The exit code of the last run.
    #[serde(deserialize_with = "null_default")]
    pub exit_code: i64,
    /// Go `UnixDate`; empty if there was none.
    #[serde(deserialize_with = "null_default")]
    pub last_successful_run_time: String,
    /// The consecutive failures.
    #[serde(deserialize_with = "null_default")]
    pub failures: i64,
    /// Go `UnixDate`; empty if there was none.
    #[serde(deserialize_with = "null_default")]
    pub last_failed_run_time: String,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// Go treats `null` as the zero value.
fn null_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
