//! The Go program: built once into a cache outside the repository, then run with the cases.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::generate::Case;

pub(crate) struct Peer {
    program: PathBuf,
}

/// `None` if Go is not installed.
pub(crate) fn build() -> Option<Peer> {
    drover_testkit::peer("tests/oracle/smd").map(|program| Peer { program })
}

impl Peer {
    /// Returns the state after each step, for each case.
    pub(crate) fn play(&self, cases: &[Case]) -> Vec<Vec<Value>> {
        self.ask(cases.iter().map(|case| json!({"schemas": case.schemas, "steps": case.steps})).collect())
    }

    /// Returns the answer to each question.
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
