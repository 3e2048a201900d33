//! No code compares text for people: reasons are enums, so that their texts can be changed at any time.
//!
//! The check finds in all sources outside of tests: a sentence as the arm of a `match`, as one side of a comparison
//! or as a search term, and searches in a field called message. Comparing two messages to detect a change is allowed.
//! Exceptions are listed below with their reasons.

use std::path::{Path, PathBuf};

use regex::Regex;

/// Places that may compare text: a file, a part of the line, and the reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    (
        "crates/machine/src/cli.rs",
        "contains(\"not found\")",
        "drivers of others have only words for a machine that does not exist",
    ),
    (
        "crates/local-machines/src/init/systemctl.rs",
        "contains(\"not found\")",
        "the init of local machines is frozen; systemctl's exit code 5",
    ),
    (
        "crates/provisioning/src/init/log.rs",
        "the object has been modified",
        "Kubernetes' words for a conflict, as they arrive in another controller's condition",
    ),
    ("crates/server/src/connections.rs", "Max open files", "a line of /proc/self/limits"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The sources of all crates, without files of tests.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" && name != "benches" {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The part of a source before its tests.
fn without_tests(source: &str) -> &str {
    source.split("#[cfg(test)]\nmod ").next().unwrap_or(source)
}

/// Patterns of code that compares text.
fn patterns() -> Vec<Regex> {
    // A sentence: at least two words of letters with a space between, lower case inside.
    let sentence = r#""[A-Za-z][a-z']+ [a-z][^"]*""#;
    [
        // A message is searched for more than a character.
        r"\bmessage(\.as_str\(\)|\.to_string\(\))?\.(contains|starts_with|ends_with|strip_prefix|strip_suffix)\([^']".to_owned(),
        // A sentence is compared, searched for, or the arm of a match.
        format!(r"(==|!=)\s*&?{sentence}"),
        format!(r"(==|!=)\s*Some\({sentence}\)"),
        format!(r"\.(contains|starts_with|ends_with|strip_prefix|strip_suffix)\(&?{sentence}"),
        format!(r#"^\s*(Some\()?{sentence}\)?(\s*\|\s*{sentence})*\s*=>"#),
        format!(r"\b[A-Z][A-Za-z]*::[A-Z][A-Za-z]*\({sentence}\)\s*(=>|\||if )"),
        format!(r"^\s*\|\s*[A-Za-z:]+\({sentence}\)"),
    ]
    .iter()
    .map(|pattern| Regex::new(pattern).unwrap())
    .collect()
}

fn offences() -> Vec<(String, usize, String)> {
    let root = root();
    let patterns = patterns();
    let mut found = Vec::new();
    for path in sources() {
        let source = std::fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        for (number, line) in without_tests(&source).lines().enumerate() {
            let code = line.trim_start();
            if !code.starts_with("//") && patterns.iter().any(|pattern| pattern.is_match(code)) {
                found.push((file.clone(), number + 1, code.to_owned()));
            }
        }
    }
    found
}

#[test]
fn no_code_decides_by_text_that_people_read() {
    let offences = offences();
    let is_allowed = |(file, _, line): &(String, usize, String)| {
        ALLOWED.iter().any(|(allowed, part, _)| file == allowed && line.contains(part))
    };
    let new: Vec<String> = offences
        .iter()
        .filter(|offence| !is_allowed(offence))
        .map(|(file, number, line)| format!("{file}:{number}: {line}"))
        .collect();
    assert!(
        new.is_empty(),
        "code decides by text that people read; make the reason an enum (crates/api/src/wait.rs shows how):\n{}",
        new.join("\n")
    );
    let stale: Vec<_> = ALLOWED
        .iter()
        .filter(|(file, part, _)| !offences.iter().any(|(f, _, line)| f == file && line.contains(part)))
        .collect();
    assert!(stale.is_empty(), "no longer needed in ALLOWED: {stale:?}");
}

#[test]
fn what_decides_by_prose_is_found() {
    let patterns = patterns();
    let is_found = |line: &str| patterns.iter().any(|pattern| pattern.is_match(line));
    for line in [
        r#"| hook::Decision::Release("its node is gone")"#,
        r#"if condition.message.starts_with("Drain of") {"#,
        r#"if error.to_string().contains("connection refused") {"#,
        r#""elected init node" => Note::normal("InitNodeElected", text),"#,
        r#""initial plan" | "plan changed" => Note::normal("PlanWritten", text),"#,
        r#"Some("its node is gone") => true,"#,
        r#"if why == "its node is gone" {"#,
    ] {
        assert!(is_found(line), "{line}");
    }
    for line in [
        r#"let message = "waiting for probes".to_owned();"#,
        r#"Self::Done => f.write_str("Deletion completed"),"#,
        r#"if condition.reason == "NodeDeleted" {"#,
        r#"if message != said {"#,
        r#"if message.contains('\n') {"#,
        r#""RKECluster" => wait,"#,
        r#"bail!("there is no cluster {name}");"#,
    ] {
        assert!(!is_found(line), "{line}");
    }
}
