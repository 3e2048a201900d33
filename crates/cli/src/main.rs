//! `drover`: provisions K3s and RKE2 clusters and keeps managing them.
//!
//! One module per command. `main` separates the commands of people from the hidden roles of local machines, which
//! must run before any thread exists.

// `print!` panics if stdout is closed; see `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod cluster;
mod describe;
mod family;
mod get;
mod logging;
mod machine;
mod output;
mod quickstart;
mod registration;
mod server;
mod sim;
mod why;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use clap::Parser;
use drover_local_machines::{holder_main, init_main, raise_open_files, shim_main};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code of a program that panicked, as Rust has it.
const PANICKED: i32 = 101;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let code = match words.split_first() {
        Some((role, rest)) if role == "machine-holder" => holder_main(rest),
        Some((role, rest)) if role == "machine-init" => init_main(rest),
        Some((role, rest)) if role == "machine-shim" => shim_main(rest),
        _ => command(args::Args::parse()),
    };
    std::process::exit(code);
}

fn command(args: args::Args) -> i32 {
    raise_open_files();
    run(args.run())
}

/// Runs until the work ends or panics.
fn run(work: impl Future<Output = anyhow::Result<i32>>) -> i32 {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::print_error_line(&format!("drover: threads cannot be started: {error}"));
            return 1;
        }
    };
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(work)));
    // A blocking call that is still waiting, such as one to a holder's socket, must not delay the exit, not even
    // after a panic. Dropping the runtime would wait for it.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match ended {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            output::print_error_line(&format!("drover: {}", output::chain(&error)));
            1
        }
        Err(_) => {
            output::print_error_line("drover: this is a bug in drover; the panic message is above");
            PANICKED
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_program_although_a_call_still_blocks() {
        let (_never, blocks) = std::sync::mpsc::channel::<()>();
        let code = run(async move {
            tokio::task::spawn_blocking(move || blocks.recv());
            panic!("on purpose");
        });
        assert_eq!(code, PANICKED);
    }
}
