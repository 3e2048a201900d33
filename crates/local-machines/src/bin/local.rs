//! Only the hidden entry points of `drover` that local machines need, for this crate's tests.

use drover_local_machines::{holder_main, init_main, shim_main};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let code = match args.split_first() {
        Some((name, rest)) if name == "machine-holder" => holder_main(rest),
        Some((name, rest)) if name == "machine-init" => init_main(rest),
        Some((name, rest)) if name == "machine-shim" => shim_main(rest),
        _ => {
            eprintln!("usage: drover-local-machine machine-holder|machine-init|machine-shim …");
            2
        }
    };
    std::process::exit(code);
}
