//! Checks `ARCHITECTURE.md` against the tree: every crate is described, has an invariant, and depends only on the
//! listed crates.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Folders of all members of the workspace.
fn members() -> Vec<String> {
    let mut members = ["tests/fuzz", "tests/kit", "tests/line", "xtask"].map(str::to_owned).to_vec();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let entry = entry.unwrap();
        if entry.path().join("Cargo.toml").exists() {
            members.push(format!("crates/{}", entry.file_name().to_string_lossy()));
        }
    }
    members.sort();
    members
}

/// Heading and text of each section about a crate.
fn sections(page: &str) -> Vec<(&str, &str)> {
    let sections = page.split("\n### `").skip(1).filter_map(|section| section.split_once("`\n"));
    sections.map(|(heading, text)| (heading, text.split("\n## ").next().unwrap_or(text))).collect()
}

/// The crates of this workspace on which a manifest depends, outside of tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut in_dependencies = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_dependencies = line == "[dependencies]";
        } else if in_dependencies && let Some(name) = line.strip_prefix("drover-") {
            found.insert(name.split(['.', ' ', '=']).next().unwrap_or(name).to_owned());
        }
    }
    found
}

#[test]
fn every_crate_is_described_with_an_invariant_and_knows_no_more_than_is_said() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let sections = sections(&page);
    for member in members() {
        let section = sections.iter().find(|(heading, _)| *heading == member);
        let (_, text) = section.unwrap_or_else(|| panic!("ARCHITECTURE.md does not describe {member}"));
        assert!(text.contains("**Architecture Invariant:**"), "{member} has no invariant");
        let said = text.lines().find_map(|line| line.strip_prefix("Knows: ")).unwrap_or_else(|| {
            panic!("ARCHITECTURE.md does not say what {member} knows");
        });
        let said: BTreeSet<String> = said.trim_end_matches('.').split(", ").map(str::to_owned).collect();
        let manifest = std::fs::read_to_string(root().join(&member).join("Cargo.toml")).unwrap();
        let more: Vec<String> = dependencies(&manifest).difference(&said).cloned().collect();
        assert!(
            more.is_empty(),
            "{member} depends on {more:?}, which ARCHITECTURE.md does not allow it to know"
        );
    }
    let described: Vec<&str> = sections.iter().map(|(heading, _)| *heading).collect();
    let gone: Vec<_> = described.iter().filter(|heading| !members().iter().any(|m| m == *heading)).collect();
    assert!(gone.is_empty(), "ARCHITECTURE.md describes {gone:?}, which are not in the workspace");
}
