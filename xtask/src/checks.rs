//! `checks [--write]`: keeps `docs/checks.md`, the ledger of Checks, consistent with the tests.
//!
//! A test lists the Checks that it covers in its name (`agent_check_7_8_…`, `kubernetes_checks_11_to_14_…`), or in a
//! comment above or inside it (`access#10`, `Check 12`, `control-plane check 13`). The column "held by" is generated
//! from that; the rest of the ledger is written by people.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The groups of Checks, which are headings in the ledger.
const SHEETS: [&str; 8] = [
    "access",
    "agent",
    "capi",
    "control-plane",
    "fleet",
    "kubernetes-api",
    "machine-drivers",
    "provisioning",
];
/// In these folders, a Check without a group belongs to the Kubernetes API.
const KUBERNETES_FOLDERS: [&str; 3] = ["crates/apiserver/", "crates/schema/", "crates/smd/"];
const NOBODY: &str = "later";

type Check = (&'static str, u32);
type Holders = BTreeMap<Check, BTreeSet<String>>;

/// Runs the chore.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let ledger = root.join("docs/checks.md");
    let text = std::fs::read_to_string(&ledger).with_context(|| ledger.display().to_string())?;
    let mut holders = Holders::new();
    for folder in ["crates", "tests"] {
        scan(&root, Path::new(folder), &mut holders)?;
    }
    let wanted = rewrite(&text, holders)?;
    match arguments {
        [] if wanted == text => Ok(()),
        [] => bail!(
            "docs/checks.md is not current; run `cargo run -p xtask -- checks --write`\n{}",
            difference(&text, &wanted)
        ),
        ["--write"] => std::fs::write(&ledger, wanted).with_context(|| ledger.display().to_string()),
        _ => bail!("usage: cargo run -p xtask -- checks [--write]"),
    }
}

fn scan(root: &Path, folder: &Path, holders: &mut Holders) -> Result<()> {
    let absolute = root.join(folder);
    for entry in std::fs::read_dir(&absolute).with_context(|| absolute.display().to_string())? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" {
                scan(root, &path, holders)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source =
                std::fs::read_to_string(root.join(&path)).with_context(|| path.display().to_string())?;
            collect(&path.display().to_string(), &source, holders);
        }
    }
    Ok(())
}

/// Adds the Checks that the tests of one file cover.
fn collect(path: &str, source: &str, holders: &mut Holders) {
    let usual = KUBERNETES_FOLDERS.iter().any(|folder| path.starts_with(folder)).then_some("kubernetes-api");
    let mut above: Vec<&str> = vec![];
    let mut is_test = false;
    let mut current: Option<(&str, Option<&'static str>)> = None;
    let mut indent = 0;
    let mut hold = |name: &str, checks: Vec<Check>| {
        for check in checks {
            holders.entry(check).or_default().insert(format!("{path}::{name}"));
        }
    };
    for raw in source.lines() {
        let line = raw.trim();
        if line == "}" && raw.len() == indent + 1 {
            current = None;
        } else if let Some(comment) = line.strip_prefix("//") {
            let comment = comment.trim_start_matches('/');
            match current {
                Some((name, sheet)) if !line.starts_with("///") => hold(name, in_comment(comment, sheet)),
                _ => above.push(comment),
            }
        } else if line.starts_with("#[") {
            is_test |= line.ends_with("test]") || line.contains("test(");
        } else if let Some(name) = function(line) {
            indent = raw.len() - raw.trim_start().len();
            let named = in_name(name, usual);
            let sheet = named.first().map(|(sheet, _)| *sheet).or(usual);
            current = (is_test || !named.is_empty()).then_some((name, sheet));
            if current.is_some() {
                hold(name, named);
                above.iter().for_each(|comment| hold(name, in_comment(comment, sheet)));
            }
            above.clear();
            is_test = false;
        } else if line.is_empty() {
            above.clear();
        }
    }
}

/// The name of the function that a line declares.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let declares =
        before.split_whitespace().all(|word| word.starts_with("pub") || word == "async" || word == "const");
    let end = after.find(['(', '<'])?;
    declares.then_some(&after[..end])
}

/// `agent_check_7_8_name`, `check_29_name`, `kubernetes_checks_11_to_14_name`,
/// `name_machine_drivers_check_31_and_32`. The text may contain other checks.
fn in_name(name: &str, usual: Option<&'static str>) -> Vec<Check> {
    let words: Vec<&str> = name.split('_').collect();
    let mut found = vec![];
    for at in (0..words.len()).filter(|at| ["check", "checks"].contains(&words[*at])) {
        let before = words[..at].join("-");
        let sheet = match before.as_str() {
            "" => usual,
            before if before.ends_with("kubernetes") => Some("kubernetes-api"),
            before => SHEETS.into_iter().find(|sheet| before.ends_with(sheet)),
        };
        found.extend(sheet.into_iter().flat_map(|sheet| numbers(&words[at + 1..]).map(move |n| (sheet, n))));
    }
    found
}

/// `access#10`, `Check 12`, `control-plane check 13`, `checks 20, 21`.
fn in_comment(comment: &str, usual: Option<&'static str>) -> Vec<Check> {
    let words: Vec<&str> = comment
        .split(|c: char| c.is_whitespace() || "(),.:;`".contains(c))
        .filter(|word| !word.is_empty())
        .collect();
    let mut found = vec![];
    for (at, word) in words.iter().enumerate() {
        if let Some((sheet, number)) = word.split_once('#') {
            found.extend(known(sheet).zip(number.parse().ok()));
        } else if ["check", "checks", "Check", "Checks"].contains(word) {
            let sheet = at.checked_sub(1).and_then(|before| known(words[before])).or(usual);
            found.extend(
                sheet.into_iter().flat_map(|sheet| numbers(&words[at + 1..]).map(move |n| (sheet, n))),
            );
        }
    }
    found
}

fn known(sheet: &str) -> Option<&'static str> {
    SHEETS.into_iter().find(|known| *known == sheet)
}

/// The numbers at the start of `words`: `7 8`, `12 and 13`, `11 to 14`.
fn numbers<'a>(words: &[&'a str]) -> impl Iterator<Item = u32> + use<'a> {
    let mut found: Vec<u32> = vec![];
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let next = words.peek().and_then(|next| next.parse::<u32>().ok());
        match (*word, next, found.last()) {
            ("and", Some(_), Some(_)) => {}
            ("to", Some(end), Some(&start)) => found.extend(start + 1..end),
            _ => match word.parse() {
                Ok(number) => found.push(number),
                Err(_) => break,
            },
        }
    }
    found.into_iter()
}

/// The ledger with its last column from `holders`.
fn rewrite(ledger: &str, mut holders: Holders) -> Result<String> {
    let mut sheet = None;
    let mut out = String::with_capacity(ledger.len());
    for line in ledger.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            sheet = known(heading.trim());
        }
        match (sheet, row(line)) {
            (Some(sheet), Some((number, summary))) => {
                let held = holders.remove(&(sheet, number)).unwrap_or_default();
                let held: Vec<String> = held.into_iter().map(|test| format!("`{test}`")).collect();
                let held = if held.is_empty() { NOBODY.to_owned() } else { held.join("<br>") };
                out.push_str(&format!("| {number} | {summary} | {held} |\n"));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    if let Some(((sheet, number), tests)) = holders.first_key_value() {
        bail!("{tests:?} name {sheet} Check {number}, which docs/checks.md does not have");
    }
    Ok(out)
}

/// Number and summary of a row.
fn row(line: &str) -> Option<(u32, &str)> {
    let (number, rest) = line.strip_prefix("| ")?.split_once(" | ")?;
    let (summary, _) = rest.strip_suffix(" |")?.rsplit_once(" | ")?;
    Some((number.parse().ok()?, summary))
}

fn difference(old: &str, new: &str) -> String {
    let lines = old.lines().zip(new.lines()).filter(|(old, new)| old != new);
    lines.map(|(old, new)| format!("- {old}\n+ {new}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(path: &str, source: &str) -> Vec<(Check, String)> {
        let mut holders = Holders::new();
        collect(path, source, &mut holders);
        holders
            .into_iter()
            .flat_map(|(check, tests)| tests.into_iter().map(move |test| (check, test)))
            .collect()
    }

    #[test]
    fn names_carry_numbers() {
        let all = |name| in_name(name, None);
        assert_eq!(all("agent_check_7_8_pending_in_5_steps"), [("agent", 7), ("agent", 8)]);
        assert_eq!(all("kubernetes_checks_11_to_13_x"), [11, 12, 13].map(|n| ("kubernetes-api", n)));
        assert_eq!(all("five_machine_drivers_check_31_and_32"), [31, 32].map(|n| ("machine-drivers", n)));
        assert_eq!(all("control_plane_check_16_and_more"), [("control-plane", 16)]);
        assert_eq!(all("health_check_2_is_not_ours"), []);
        assert_eq!(all("a_failed_check_leaves_nothing_machine_drivers_check_9"), [("machine-drivers", 9)]);
        assert_eq!(in_name("check_9_pages", Some("kubernetes-api")), [("kubernetes-api", 9)]);
    }

    #[test]
    fn comments_above_and_inside_a_test_count_and_others_do_not() {
        let source = "
            // access#1 belongs to nobody: no test follows.

            /// access#9.
            #[tokio::test]
            async fn refused() {
                // control-plane check 13, then checks 20, 21.
            }
            // access#3 is outside.
            fn helper() {
                // access#2
            }";
        let test = || "crates/x/src/y.rs::refused".to_owned();
        let expected = [(("access", 9), test()), (("control-plane", 13), test())];
        assert_eq!(held("crates/x/src/y.rs", source), expected, "checks without a group are nobody's here");
    }

    #[test]
    fn the_last_column_follows_the_tests_and_unknown_numbers_are_an_error() {
        let ledger =
            "## access\n| # | a | b |\n|---|---|---|\n| 1 | first | gone |\n| 2 | second | later |\n";
        let holders = Holders::from([(("access", 2), BTreeSet::from(["p::t".to_owned()]))]);
        let wanted =
            "## access\n| # | a | b |\n|---|---|---|\n| 1 | first | later |\n| 2 | second | `p::t` |\n";
        assert_eq!(rewrite(ledger, holders).unwrap(), wanted);
        let unknown = Holders::from([(("access", 3), BTreeSet::from(["p::t".to_owned()]))]);
        assert!(rewrite(ledger, unknown).unwrap_err().to_string().contains("access Check 3"));
    }
}
