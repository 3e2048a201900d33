//! Builds all tests and runs their programs side by side.
//!
//! `cargo test` runs one test program after the other. Most tests wait rather than compute, so running several
//! programs at once is much faster. The programs that took longest in the last run start first. The output of a
//! program is printed when it has ended, and a table at the end shows the durations.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

/// How many of the slowest programs the table shows.
const SHOWN: usize = 15;

/// One test program.
#[derive(Clone, Debug, PartialEq)]
struct Program {
    /// `package::target`.
    name: String,
    path: PathBuf,
    /// The package's folder, in which cargo runs tests.
    folder: PathBuf,
}

/// The result of a program.
struct Outcome {
    name: String,
    took: Duration,
    succeeded: bool,
}

/// `test [cargo's arguments]`: for example `test --workspace` or `test -p drover-agent`.
pub fn run(arguments: &[&str]) -> anyhow::Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut programs = build(&cargo, arguments)?;
    let times = Times::load(&cargo)?;
    programs.sort_by_key(|program| std::cmp::Reverse(times.of(&program.name)));
    let jobs = jobs(std::env::var("DROVER_TEST_JOBS").ok().as_deref())?;
    let begun = Instant::now();
    let outcomes = run_all(programs, jobs);
    times.save(&outcomes)?;
    report(&outcomes, begun.elapsed(), jobs)
}

/// One program more than there are cores, because most of them mostly wait.
fn jobs(wanted: Option<&str>) -> anyhow::Result<usize> {
    match wanted {
        Some(text) => match text.parse() {
            Ok(jobs) if jobs > 0 => Ok(jobs),
            _ => bail!("DROVER_TEST_JOBS must be a positive number, not {text:?}"),
        },
        None => Ok(std::thread::available_parallelism().map_or(2, usize::from) + 1),
    }
}

fn build(cargo: &str, arguments: &[&str]) -> anyhow::Result<Vec<Program>> {
    let mut command = Command::new(cargo);
    // Environment variables that `cargo run` sets for this program would make build scripts run again.
    for (name, _) in std::env::vars().filter(|(name, _)| is_of_package(name)) {
        command.env_remove(name);
    }
    let mut child = command
        .arg("test")
        .args(arguments)
        .args(["--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut programs = vec![];
    for line in BufReader::new(output).lines() {
        programs.extend(program(&serde_json::from_str(&line?)?));
    }
    if !child.wait()?.success() {
        bail!("failed to build the tests");
    }
    Ok(programs)
}

fn is_of_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_NAME", "CARGO_BIN_NAME", "CARGO_PRIMARY_PACKAGE"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}

/// The test program in a message of cargo.
fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_str()?;
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    let name =
        if kind == "test" { format!("{package}::{target}") } else { format!("{package} ({kind} {target})") };
    Some(Program { name, path: message["executable"].as_str()?.into(), folder: folder.into() })
}

fn run_all(programs: Vec<Program>, jobs: usize) -> Vec<Outcome> {
    let queue = Mutex::new(programs.into_iter());
    let (done, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (queue, done) = (&queue, done.clone());
            scope.spawn(move || {
                loop {
                    let next = queue.lock().map(|mut queue| queue.next());
                    let Ok(Some(program)) = next else { return };
                    let _ = done.send(run_one(&program));
                }
            });
        }
        drop(done);
        outcomes
            .iter()
            .map(|(outcome, text): (Outcome, String)| {
                println!("\n----- {} [{:.1} s]\n{text}", outcome.name, outcome.took.as_secs_f64());
                outcome
            })
            .collect()
    })
}

fn run_one(program: &Program) -> (Outcome, String) {
    let begun = Instant::now();
    let output = Command::new(&program.path)
        .arg("--show-output")
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .output();
    let (succeeded, text) = match output {
        Ok(output) => {
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            if !output.status.success() {
                text.push_str(&format!("{} ended with {}\n", program.name, output.status));
            }
            (output.status.success(), text)
        }
        Err(error) => (false, format!("failed to start {}: {error}\n", program.path.display())),
    };
    (Outcome { name: program.name.clone(), took: begun.elapsed(), succeeded }, text)
}

fn report(outcomes: &[Outcome], took: Duration, jobs: usize) -> anyhow::Result<()> {
    let mut slowest: Vec<&Outcome> = outcomes.iter().collect();
    slowest.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    println!(
        "\n{} test programs, {jobs} at a time, took {:.0} s. The slowest:",
        outcomes.len(),
        took.as_secs_f64()
    );
    for outcome in slowest.iter().take(SHOWN) {
        println!("{:8.1} s  {}", outcome.took.as_secs_f64(), outcome.name);
    }
    let failed: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.succeeded).map(|outcome| outcome.name.as_str()).collect();
    if !failed.is_empty() {
        bail!("tests failed: {}", failed.join(", "));
    }
    Ok(())
}

/// How long each program took in the last run, stored in the target directory.
struct Times {
    file: PathBuf,
    seconds: BTreeMap<String, f64>,
}

impl Times {
    fn load(cargo: &str) -> anyhow::Result<Self> {
        let metadata = Command::new(cargo)
            .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
            .output()
            .context("failed to start cargo")?;
        let metadata: Value =
            serde_json::from_slice(&metadata.stdout).context("failed to read cargo's metadata")?;
        let target = metadata["target_directory"].as_str().context("cargo has no target directory")?;
        let file = Path::new(target).join("test-times.json");
        let seconds = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Ok(Self { file, seconds: seconds.unwrap_or_default() })
    }

    /// Unknown programs are first, because they may take long.
    fn of(&self, name: &str) -> Duration {
        self.seconds.get(name).map_or(Duration::MAX, |seconds| Duration::from_secs_f64(seconds.max(0.0)))
    }

    fn save(&self, outcomes: &[Outcome]) -> anyhow::Result<()> {
        let mut seconds = self.seconds.clone();
        seconds.extend(outcomes.iter().map(|outcome| (outcome.name.clone(), outcome.took.as_secs_f64())));
        let text = serde_json::to_vec_pretty(&seconds)?;
        std::fs::write(&self.file, text).with_context(|| format!("failed to write {}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cargos_messages_name_the_test_programs() {
        let message = |test: bool, kind: &str| {
            json!({
                "reason": "compiler-artifact", "profile": {"test": test}, "executable": "/t/deps/line-1",
                "manifest_path": "/r/crates/agent/Cargo.toml", "target": {"name": "line", "kind": [kind]},
            })
        };
        let found = program(&message(true, "test")).unwrap();
        assert_eq!(
            (found.name.as_str(), found.folder.as_path()),
            ("agent::line", Path::new("/r/crates/agent"))
        );
        assert_eq!(program(&message(true, "lib")).unwrap().name, "agent (lib line)");
        assert_eq!(program(&message(false, "bin")), None, "a program, not a test");
        assert_eq!(program(&json!({"reason": "build-finished"})), None);
    }

    #[test]
    fn a_failed_program_fails_the_run_and_is_named() {
        let outcome =
            |name: &str, succeeded| Outcome { name: name.into(), took: Duration::from_secs(1), succeeded };
        assert!(report(&[outcome("a", true)], Duration::ZERO, 1).is_ok());
        let error = report(&[outcome("a", true), outcome("b", false)], Duration::ZERO, 1).unwrap_err();
        assert_eq!(error.to_string(), "tests failed: b");
    }

    #[test]
    fn programs_run_and_those_that_fail_or_do_not_start_are_told_from_those_that_succeed() {
        let program =
            |path: &str| Program { name: path.into(), path: path.into(), folder: std::env::temp_dir() };
        let programs = ["/bin/true", "/bin/false", "/nonexistent"].map(program).to_vec();
        let mut ended: Vec<(String, bool)> =
            run_all(programs, 2).into_iter().map(|outcome| (outcome.name, outcome.succeeded)).collect();
        ended.sort();
        assert_eq!(
            ended,
            [("/bin/false".into(), false), ("/bin/true".into(), true), ("/nonexistent".into(), false)]
        );
        assert!(jobs(Some("0")).is_err() && jobs(Some("x")).is_err() && jobs(None).is_ok());
    }

    /// Test programs do not contain doctests, so there must be none.
    #[test]
    fn no_documentation_contains_a_doctest() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut folders = vec![root.join("crates"), root.join("tests"), root.join("benches")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let mut inside = false;
                    for line in text.lines().filter_map(|line| line.trim_start().strip_prefix("//")) {
                        let Some(fence) = line.trim_start_matches(['/', '!', ' ']).strip_prefix("```") else {
                            continue;
                        };
                        assert!(
                            inside || ["sh", "text", "yaml", "json"].contains(&fence),
                            "{}: ```{fence}",
                            path.display()
                        );
                        inside = !inside;
                    }
                }
            }
        }
    }
}
