//! Where log lines are written: to stderr for a server, to a file for commands that draw on the terminal.

use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;

use tracing_subscriber::EnvFilter;

fn filter(verbose: u8) -> EnvFilter {
    let default = match verbose {
        // The client logs every failed call, and its caller reports the same error with more context.
        0 => "warn,drover=info,kube_client=off",
        1 => "info,drover=debug,kube_client=off",
        _ => "debug,hyper=info,h2=info,rustls=info,tower=info",
    };
    EnvFilter::try_from_env("DROVER_LOG").unwrap_or_else(|_| {
        // All crates of the workspace begin with `drover`, and targets match by prefix.
        EnvFilter::new(default)
    })
}

/// Logs to stderr.
pub(crate) fn to_stderr(verbose: u8) {
    filtered_to_stderr(filter(verbose));
}

/// The same for a process with thousands of agents and nodes, whose logs are shown only if requested.
pub(crate) fn quiet_to_stderr(verbose: u8) {
    let quiet =
        || EnvFilter::try_from_env("DROVER_LOG").unwrap_or_else(|_| EnvFilter::new("error,kube_client=off"));
    filtered_to_stderr(verbose.checked_sub(1).map_or_else(quiet, filter));
}

fn filtered_to_stderr(filter: EnvFilter) {
    // A second initialisation in tests has no effect.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A journal does not support colors.
        .with_ansi(std::io::stderr().is_terminal())
        // Errors in writing a log would be reported on stderr, which is what cannot be written.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .try_init();
}

/// Appends to a file.
pub(crate) fn to_file(path: &Path, verbose: u8) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let file = File::options().create(true).append(true).open(path)?;
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose))
        .with_ansi(false)
        // A full disk is reported by the operation that fails because of it.
        .log_internal_errors(false)
        .with_writer(std::sync::Mutex::new(file))
        .try_init();
    Ok(())
}
