//! Random histories of writes, played by this crate and by the original (tests/oracle/smd, a small Go
//! program around k8s.io/apimachinery and structured-merge-diff), must end alike after every step:
//! objects, owners with their sets to the byte, conflicts.
//!
//! `DROVER_ORACLE_CASES` and `DROVER_ORACLE_SEED` widen or move the search. Without Go the test says
//! so and passes.

#![allow(clippy::unwrap_used)] // a test

mod generate;
mod peer;
mod play;
mod random;
mod strategic;

use serde_json::{Value, json};

use generate::Case;

#[test]
fn random_histories_end_like_upstream() {
    let Some(peer) = peer::build() else {
        eprintln!("SKIPPED: no `go` on this machine, so nothing was compared with upstream");
        return;
    };
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (cases, seed) = (number("DROVER_ORACLE_CASES", 500), number("DROVER_ORACLE_SEED", 1));
    let cases: Vec<Case> = (seed..seed + cases).map(generate::case).collect();
    let outcomes = peer.play(&cases);
    let mut steps = 0;
    for (case, theirs) in cases.iter().zip(outcomes) {
        steps += case.steps.len();
        if let Err(first) = same(case, &theirs) {
            // Upstream stamps entries with the real time, and a second may have passed meanwhile.
            let again = peer.play(std::slice::from_ref(case));
            if let Err(difference) = same(case, &again[0]) {
                panic!("seed {}: {difference}\n(first time: {} bytes)", case.seed, first.len());
            }
        }
    }
    eprintln!("{} histories, {steps} steps, equal", cases.len());
}

#[test]
fn random_strategic_merge_patches_end_like_upstream() {
    let Some(peer) = peer::build() else {
        eprintln!("SKIPPED: no `go` on this machine, so nothing was compared with upstream");
        return;
    };
    let patches: Vec<strategic::Case> = (1..=1500).map(strategic::case).collect();
    let answers = peer.ask(patches.iter().map(strategic::Case::question).collect());
    let mut applied = 0;
    for (case, answer) in patches.iter().zip(answers) {
        let theirs = &answer[0];
        if theirs["error"].is_string() {
            continue;
        }
        applied += 1;
        let ours = case
            .merged
            .as_ref()
            .unwrap_or_else(|error| panic!("seed {}: {error}\n{}", case.seed, case.question()));
        assert_eq!(*ours, strategic::clean(&theirs["object"]), "seed {}: {}", case.seed, case.question());
    }
    eprintln!("{applied} patches, equal");
    assert!(applied > 300, "upstream refused most of the patches; the generator is broken");
}

fn same(case: &Case, theirs: &[Value]) -> Result<(), String> {
    for (at, (ours, theirs)) in case.outcomes.iter().zip(theirs).enumerate() {
        let both_failed = ours["error"].is_string() && theirs["error"].is_string();
        for part in ["object", "managed", "conflicts"] {
            let theirs_error = &theirs["error"];
            let theirs = normal(&theirs[part]);
            if ours[part] != theirs {
                let history: Vec<_> = case.steps[..=at].iter().map(ToString::to_string).collect();
                return Err(format!(
                    "step {at}: {part} differs ({} / {})\nours:   {}\ntheirs: {theirs}\nhistory:\n{}\nschemas: {}\nbefore: {}",
                    ours["error"],
                    theirs_error,
                    ours[part],
                    history.join("\n"),
                    json!(case.schemas),
                    at.checked_sub(1).map_or(&Value::Null, |before| &case.outcomes[before]),
                ));
            }
        }
        if !both_failed && ours["error"] != theirs["error"] {
            return Err(format!(
                "step {at}: ours {} theirs {}\n{}",
                ours["error"], theirs["error"], case.steps[at]
            ));
        }
    }
    Ok(())
}

/// Entries and conflicts come in an order that depends on time (theirs) or chance (theirs, again).
fn normal(value: &Value) -> Value {
    let mut value = value.clone();
    if let Value::Array(items) = &mut value {
        items.sort_by_key(ToString::to_string);
    }
    value
}
