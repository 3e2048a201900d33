//! Every kind of patch with its seeds and some thousand mutations, which are the same in every run.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use drover_fuzz_targets as targets;
use targets::mutate::{Random, mutate};
use targets::seeds;

fn run(name: &str, target: fn(&[u8]), rounds: usize) {
    let seeds = seeds::of(name);
    assert!(!seeds.is_empty(), "fuzz/corpus/{name} is empty");
    let mut random = Random(name.len() as u64);
    seeds.iter().for_each(|seed| target(seed));
    for _ in 0..rounds {
        let (one, other) = (random.below(seeds.len()), random.below(seeds.len()));
        let input = mutate(&mut random, &seeds[one], &seeds[other]);
        let text = String::from_utf8_lossy(&input).into_owned();
        let outcome = std::panic::catch_unwind(|| target(&input));
        assert!(outcome.is_ok(), "{name} fails with this input; keep it as a seed: {text:?}");
    }
}

#[test]
fn json_patches() {
    run("json_patch", targets::json_patches, 3000);
}

#[test]
fn merge_patches() {
    run("merge_patch", targets::merge_patches, 2000);
}

#[test]
fn strategic_patches() {
    run("strategic_patch", targets::strategic_patches, 2000);
}

#[test]
fn applied_configurations() {
    run("apply_patch", targets::applied, 2000);
}
