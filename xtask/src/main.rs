//! Repository chores, run as `cargo run -p xtask -- <chore>`.

#[cfg(test)]
mod architecture;
mod checks;
mod crds;
#[cfg(test)]
mod prose;
mod test;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments.as_slice() {
        ["checks", rest @ ..] => checks::run(rest),
        ["crds", rest @ ..] => crds::run(rest),
        ["test", rest @ ..] => test::run(rest),
        _ => Err(anyhow::anyhow!(
            "usage: cargo run -p xtask -- checks [--write] | crds [--check] | test [arguments of cargo test]"
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
