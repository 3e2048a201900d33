//! Replacements for systemd's programs in a machine: `systemctl`, `journalctl`, `shutdown`, `poweroff`, `halt`,
//! `reboot`, and `curl` if the host has none. Scripts in the machine call `drover machine-shim NAME ARGS…`.

mod curl;
mod journalctl;

use std::io::Write;

use crate::{
    init::SOCKET,
    protocol::{InitReply, InitRequest},
    wire,
};

/// Entry point of `drover machine-shim NAME ARGS…`.
pub fn shim_main(args: &[String]) -> i32 {
    let Some((name, args)) = args.split_first() else {
        eprintln!("usage: machine-shim systemctl|journalctl|shutdown|poweroff|halt|reboot|curl [ARGS…]");
        return 1;
    };
    match name.as_str() {
        "systemctl" => systemctl(args),
        "curl" => curl::main(args),
        "journalctl" => journalctl::main(args),
        "poweroff" | "halt" => systemctl(&["poweroff".to_owned()]),
        "reboot" => systemctl(&["reboot".to_owned()]),
        "shutdown" => shutdown(args),
        other => {
            eprintln!("{other} is not supported on local machines");
            1
        }
    }
}

fn systemctl(args: &[String]) -> i32 {
    let request = InitRequest::Systemctl { args: args.to_vec() };
    let reply = wire::connect(SOCKET.as_ref()).and_then(|stream| {
        wire::send(&stream, &request, &[])?;
        wire::recv::<InitReply>(&stream)
    });
    match reply {
        Ok(Some((InitReply::Output { stdout, stderr, code }, _))) => {
            // A reader that closes the pipe early (`systemctl …
            // head -1`) is not a failure.
            let _ = std::io::stdout().write_all(stdout.as_bytes());
            let _ = std::io::stderr().write_all(stderr.as_bytes());
            code
        }
        Ok(_) => {
            eprintln!("process 1 closed the connection");
            1
        }
        Err(error) => {
            eprintln!("failed to connect to process 1 at {SOCKET}: {error}");
            1
        }
    }
}

/// `shutdown [-h|-P|-H|-r] [now|+0]`. A later time is not supported.
fn shutdown(args: &[String]) -> i32 {
    let reboot = args.iter().any(|arg| arg == "-r" || arg == "--reboot");
    match args.iter().find(|arg| !arg.starts_with('-')) {
        Some(when) if when != "now" && when != "+0" => {
            eprintln!("local machines do not support a shutdown at {when}; use `now`");
            1
        }
        _ => systemctl(&[if reboot { "reboot" } else { "poweroff" }.to_owned()]),
    }
}
