//! The Go program: built once into a cache outside the repository, then fed with cases.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::generate::Case;

pub(crate) struct Peer {
    program: PathBuf,
}

/// `None` if there is no Go.
pub(crate) fn build() -> Option<Peer> {
    Command::new("go").arg("version").output().ok()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle/smd");
    let mut hash = Sha256::new();
    for file in ["main.go", "go.mod", "go.sum"] {
        hash.update(std::fs::read(source.join(file)).unwrap());
    }
    let hash: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let cache = std::env::var_os("DROVER_CACHE").map(PathBuf::from).unwrap_or_else(|| {
        let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
        home.join(".cache/drover")
    });
    let program = cache.join(format!("smd-oracle-v0.36.3-{hash}"));
    if !program.exists() {
        std::fs::create_dir_all(&cache).unwrap();
        // Built aside and moved, so that a test running at the same time never sees half a program.
        let aside = cache.join(format!("smd-oracle-{}-{hash}", std::process::id()));
        let built = Command::new("go")
            .args(["build", "-o"])
            .arg(&aside)
            .arg(".")
            .current_dir(&source)
            .output()
            .unwrap();
        assert!(built.status.success(), "go build: {}", String::from_utf8_lossy(&built.stderr));
        std::fs::rename(&aside, &program).unwrap();
    }
    Some(Peer { program })
}

impl Peer {
    /// For each case the state after each step.
    pub(crate) fn play(&self, cases: &[Case]) -> Vec<Vec<Value>> {
        self.ask(cases.iter().map(|case| json!({"schemas": case.schemas, "steps": case.steps})).collect())
    }

    /// An answer to each question.
    pub(crate) fn ask(&self, questions: Vec<Value>) -> Vec<Vec<Value>> {
        let mut child =
            Command::new(&self.program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = String::new();
        for question in &questions {
            input += &question.to_string();
            input.push('\n');
        }
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()).unwrap());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(output.status.success(), "the oracle failed: {}", output.status);
        let outcomes: Vec<_> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(outcomes.len(), questions.len());
        outcomes
    }
}
