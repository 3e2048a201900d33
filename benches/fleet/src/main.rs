//! Measures the management plane with fleets of simulated clusters and prints a table.
//!
//! ```sh
//! cargo build --release && cargo run --release -p drover-bench-fleet
//! ```
//!
//! Each size gets a server of its own with a temporary data directory on SQLite, and one `drover sim fleet` process. Both
//! are the `drover` beside this program, or the one given with `--drover`.

mod api;
mod latency;
mod measure;
mod processes;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Parser;

use measure::Numbers;

/// Measure the management plane with fleets of simulated clusters.
#[derive(Parser)]
struct Args {
    /// Numbers of clusters to measure with, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000")]
    sizes: Vec<usize>,
    /// Workers of each cluster.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// The program to measure [default: `drover` beside this program].
    #[arg(long)]
    drover: Option<PathBuf>,
    /// Seconds of idling to measure.
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// Clusters that are created while the latency of a change is measured; 0 leaves this out.
    #[arg(long, default_value_t = 100)]
    others: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let drover = match args.drover {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("drover"),
    };
    if !drover.exists() {
        bail!("{} does not exist: run `cargo build --release` first", drover.display());
    }
    println!("machine: {}", processes::machine());
    println!("load average before: {}", processes::load());
    let mut all: Vec<Numbers> = vec![];
    for size in args.sizes {
        println!("\n{size} clusters with {} workers each", args.workers);
        let numbers = measure::measure(&drover, size, args.workers, Duration::from_secs(args.idle)).await?;
        all.push(numbers);
        print_table(&all);
    }
    if args.others > 0 {
        println!("\nchanges of one cluster while {} others are created", args.others);
        let took = latency::while_others_are_created(&drover, args.others, args.workers).await?;
        println!(
            "| spec change to plan while {} clusters are created: p95 of {} | {} |",
            args.others,
            took.len(),
            took.p95().map_or_else(String::new, |time| format!("{:.0} ms", time.as_secs_f64() * 1000.0))
        );
    }
    println!("load average after: {}", processes::load());
    Ok(())
}

fn print_table(all: &[Numbers]) {
    let mut lines = vec![];
    let head: Vec<String> = all.iter().map(|numbers| format!("{} clusters", numbers.size)).collect();
    lines.push(format!("| | goal | {} |", head.join(" | ")));
    lines.push(format!("|---|---|{}", "---|".repeat(all.len())));
    for (what, goal, value) in measure::ROWS {
        let cells: Vec<String> = all.iter().map(value).collect();
        lines.push(format!("| {what} | {goal} | {} |", cells.join(" | ")));
    }
    println!("\n{}", lines.join("\n"));
}
