//! Random histories of writes, executed by this crate and by the original (tests/oracle/smd, a small Go program using
//! k8s.io/apimachinery and structured-merge-diff), must give equal results after every step: objects, owners with their
//! sets to the byte, and conflicts.
//!
//! `DROVER_ORACLE_CASES` sets the number of histories and `DROVER_ORACLE_SEED` the first seed. Without Go the test
//! prints that it is skipped and passes.

#![allow(clippy::unwrap_used)] // a test

mod generate;
mod peer;
mod play;
mod random;
mod strategic;

use serde_json::{Value, json};

use generate::Case;

#[test]
fn random_histories_match_upstream() {
    let Some(peer) = peer::build() else {
        eprintln!("SKIPPED: Go is not installed, so there was no comparison with upstream");
        return;
    };
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (cases, seed) = (number("DROVER_ORACLE_CASES", 500), number("DROVER_ORACLE_SEED", 1));
    let cases: Vec<Case> = (seed..seed + cases).map(generate::case).collect();
    let outcomes = peer.play(&cases);
    let mut steps = 0;
    for (case, upstream) in cases.iter().zip(outcomes) {
        steps += case.steps.len();
        if let Err(first) = same(case, &upstream) {
            // Upstream stamps entries with the current time, which may have advanced by a second.
            let again = peer.play(std::slice::from_ref(case));
            if let Err(difference) = same(case, &again[0]) {
                panic!("seed {}: {difference}\n(first time: {} bytes)", case.seed, first.len());
            }
        }
    }
    eprintln!("{} histories, {steps} steps, equal", cases.len());
}

#[test]
fn random_strategic_merge_patches_match_upstream() {
    let Some(peer) = peer::build() else {
        eprintln!("SKIPPED: Go is not installed, so there was no comparison with upstream");
        return;
    };
    let patches: Vec<strategic::Case> = (1..=1500).map(strategic::case).collect();
    let answers = peer.ask(patches.iter().map(strategic::Case::question).collect());
    let mut applied = 0;
    for (case, answer) in patches.iter().zip(answers) {
        let upstream = &answer[0];
        if upstream["error"].is_string() {
            continue;
        }
        applied += 1;
        let ours = case
            .merged
            .as_ref()
            .unwrap_or_else(|error| panic!("seed {}: {error}\n{}", case.seed, case.question()));
        assert_eq!(*ours, strategic::clean(&upstream["object"]), "seed {}: {}", case.seed, case.question());
    }
    eprintln!("{applied} patches, equal");
    assert!(applied > 300, "upstream rejected most patches; the generator is broken");
}

fn same(case: &Case, upstream: &[Value]) -> Result<(), String> {
    for (at, (ours, upstream)) in case.outcomes.iter().zip(upstream).enumerate() {
        let both_failed = ours["error"].is_string() && upstream["error"].is_string();
        for part in ["object", "managed", "conflicts"] {
            let upstream_error = &upstream["error"];
            let upstream = normal(&upstream[part]);
            if ours[part] != upstream {
                let history: Vec<_> = case.steps[..=at].iter().map(ToString::to_string).collect();
                return Err(format!(
                    "step {at}: {part} differs ({} / {})\nours:   {}\nupstream: {upstream}\nhistory:\n{}\nschemas: {}\nbefore: {}",
                    ours["error"],
                    upstream_error,
                    ours[part],
                    history.join("\n"),
                    json!(case.schemas),
                    at.checked_sub(1).map_or(&Value::Null, |before| &case.outcomes[before]),
                ));
            }
        }
        if !both_failed && ours["error"] != upstream["error"] {
            return Err(format!(
                "step {at}: ours {} upstream {}\n{}",
                ours["error"], upstream["error"], case.steps[at]
            ));
        }
    }
    Ok(())
}

/// Sorts entries and conflicts, whose order in upstream's results depends on time and chance.
fn normal(value: &Value) -> Value {
    let mut value = value.clone();
    if let Value::Array(items) = &mut value {
        items.sort_by_key(ToString::to_string);
    }
    value
}
