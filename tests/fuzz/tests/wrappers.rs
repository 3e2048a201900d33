//! The ordinary tests do not build `fuzz/`, because cargo-fuzz needs another compiler. This test compares it with the
//! targets.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: PathBuf) -> impl Iterator<Item = (String, String)> {
    fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.path().is_file()).map(|entry| {
        let name = entry.path().file_stem().unwrap().to_string_lossy().into_owned();
        (name, fs::read_to_string(entry.path()).unwrap())
    })
}

#[test]
fn every_target_is_wrapped_declared_and_run_by_the_ordinary_tests() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fuzz = here.join("../../fuzz");
    let text = |folder: &str| files(here.join(folder)).map(|(_, text)| text).collect::<String>();
    let (sources, tests) = (text("src"), text("tests"));
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    let declared: BTreeSet<String> = manifest
        .lines()
        .filter_map(|line| {
            Some(line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\"")?.to_owned())
        })
        .collect();
    let mut wrapped = BTreeSet::new();
    for (name, wrapper) in files(fuzz.join("fuzz_targets")) {
        let call = wrapper.split_once("drover_fuzz_targets::").expect(&name).1;
        let function = call.split_once("(data)").expect(&name).0;
        assert!(sources.contains(&format!("pub fn {function}(data: &[u8])")), "{name} calls {function}");
        assert!(tests.contains(&format!("targets::{function}")), "no test runs {function}");
        wrapped.insert(name);
    }
    assert_eq!(wrapped, declared, "left: fuzz/fuzz_targets; right: fuzz/Cargo.toml");
}
