//! `drover`: provisions K3s and RKE2 clusters and keeps managing them.
//!
//! One module per command. `main` only tells the hidden roles of local machines, which must run before any thread
//! exists, from the commands of people.

mod args;
mod cluster;
mod describe;
mod get;
mod logging;
mod machine;
mod output;
mod quickstart;
mod server;
mod sim;

use clap::Parser;
use drover_machine::local::{holder_main, init_main, shim_main};

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
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("drover: threads cannot be started: {error}");
            return 1;
        }
    };
    let code = runtime.block_on(args.run());
    // A blocking call that still waits (a holder's socket, say) must not hold the exit.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match code {
        Ok(code) => code,
        Err(error) => {
            eprintln!("drover: {}", output::chain(&error));
            1
        }
    }
}
