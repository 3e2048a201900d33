//! `drover-agent`; see [`drover_agent`].

fn main() -> std::process::ExitCode {
    drover_agent::cli::main(&std::env::args().skip(1).collect::<Vec<_>>())
}
