//! Why a machine could not apply its plan, as one line for people: from what its agent reported.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use drover_plan::{Plan, keys};

use super::garbage;

/// What a condition's message has room for.
const LIMIT: usize = 900;
/// So much of the beginning of a longer one stays.
const HEAD: usize = 600;

/// The reason in the secret's `failed-output`; empty if none can be read there. Equal failures give equal reasons,
/// whenever they happen: the times in them are left out, so that another attempt is no news.
pub fn reason(plan: Option<&Plan>, packed: Option<&[u8]>) -> String {
    let outputs = packed.and_then(unpack).unwrap_or_default();
    let names = || plan.iter().flat_map(|plan| &plan.instructions).map(|instruction| &instruction.name);
    let shown = |line: &&str| !plan.is_some_and(|plan| gives_away(plan, line));
    let said_last = |name: &String| outputs.get(name).and_then(|text| last_line(text)).filter(shown);
    let told = match outputs.get(keys::AGENT_REASON).map(|text| text.trim()).filter(|text| !text.is_empty()) {
        // That an instruction failed tells little without what it said.
        Some(reason) => {
            let (why, said) = reason.split_once('\n').unwrap_or((reason, ""));
            last_line(said).filter(shown).map_or_else(|| why.to_owned(), |line| format!("{why}: {line}"))
        }
        // Another agent: the instruction that failed is the last one that said something.
        None => names().rev().find_map(said_last).unwrap_or_default().to_owned(),
    };
    shorten(&without_times(&told))
}

fn unpack(packed: &[u8]) -> Option<BTreeMap<String, String>> {
    let outputs: BTreeMap<String, String> = garbage::unpack(packed).ok()?;
    let plain =
        |text: &str| String::from_utf8_lossy(&BASE64_STANDARD.decode(text).unwrap_or_default()).into_owned();
    Some(outputs.into_iter().map(|(name, output)| (name, plain(&output))).collect())
}

fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

/// Whether the line repeats something of the plan that may be a secret. Few may read plans; conditions and events are
/// read by everybody who looks after the cluster.
fn gives_away(plan: &Plan, line: &str) -> bool {
    let told = |word: &str, shortest: usize| {
        let known = word.starts_with('/') || (word.contains("://") && !word.contains('@'));
        word.len() >= shortest && !known && line.contains(word)
    };
    let env = plan.instructions.iter().flat_map(|instruction| &instruction.env);
    let in_file = |content: &String| {
        let content = BASE64_STANDARD.decode(content).unwrap_or_default();
        let ends = |c: char| c.is_whitespace() || "\"',".contains(c);
        String::from_utf8_lossy(&content).split(ends).any(|word| told(word, 16))
    };
    env.filter_map(|entry| entry.split_once('=')).any(|(_, value)| told(value, 8))
        || plan.files.iter().any(|file| in_file(&file.content))
}

/// Dates and times become an ellipsis: of logs (RFC 3339, or the time alone) and of the agent's work folders.
fn without_times(text: &str) -> String {
    const FORMS: [&str; 3] = ["dddd-dd-ddTdd:dd:dd", "dddddddd-dddddd", "dd:dd:dd"];
    let fits = |text: &[char], form: &str| {
        text.len() >= form.len()
            && form.chars().zip(text).all(|(wanted, c)| match wanted {
                'd' => c.is_ascii_digit(),
                'T' => matches!(c, 'T' | ' '),
                other => *c == other,
            })
    };
    let text: Vec<char> = text.chars().collect();
    let (mut out, mut at) = (String::new(), 0);
    while at < text.len() {
        let begins = at == 0 || !text[at - 1].is_ascii_digit();
        match FORMS.iter().find(|form| begins && fits(&text[at..], form)) {
            None => {
                out.push(text[at]);
                at += 1;
            }
            Some(form) => {
                out.push('…');
                at += form.len();
                // A fraction, and the zone.
                while text.get(at).is_some_and(|c| c.is_ascii_digit() || matches!(c, '.' | 'Z')) {
                    at += 1;
                }
            }
        }
    }
    out
}

/// What happened in the fixed words, and why.
pub fn with_reason(what: &str, why: &str) -> String {
    if why.is_empty() { what.to_owned() } else { format!("{what}: {why}") }
}

/// One line. Of a long one beginning and end stay: what was tried first, and where it ended.
pub fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let length = line.chars().count();
    if length <= LIMIT {
        return line;
    }
    let head: String = line.chars().take(HEAD).collect();
    let end: String = line.chars().skip(length - (LIMIT - HEAD - 1)).collect();
    format!("{head}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plansecret::upkeep::gzip;

    fn of(outputs: &[(&str, &str)]) -> String {
        let plan: Plan =
            drover_plan::from_slice(br#"{"instructions":[{"name":"first"},{"name":"install"}]}"#).unwrap();
        let outputs: BTreeMap<_, _> =
            outputs.iter().map(|(name, text)| (name.to_string(), BASE64_STANDARD.encode(text))).collect();
        reason(Some(&plan), Some(&gzip(&drover_plan::to_vec(&outputs).unwrap())))
    }

    #[test]
    fn the_agent_says_why_and_the_instruction_what_it_met() {
        let full = "cannot write /etc/x: No space left on device";
        assert_eq!(of(&[(keys::AGENT_REASON, full), ("first", "fine")]), full);
        let exited = "instruction 2 of 2 (install): exited with 1";
        let both = format!("{exited}\ntar: no space");
        assert_eq!(of(&[(keys::AGENT_REASON, &both), ("first", "fine")]), format!("{exited}: tar: no space"));
        let outputs = [("first", "fine"), ("install", "a\ntar: no space\n\n")];
        assert_eq!(of(&outputs), "tar: no space", "an agent without reasons of its own");
    }

    #[test]
    fn what_the_plan_keeps_to_itself_is_not_told() {
        let config =
            BASE64_STANDARD.encode("server: https://10.0.0.1:9345\ntoken: K10abcdef::server:0123456789\n");
        let text = format!(
            r#"{{"files":[{{"path":"/etc/x","content":"{config}"}}],
                 "instructions":[{{"name":"install","env":["DB_PASS=hunter-number-2","DIR=/var/lib/x"]}}]}}"#
        );
        let plan: Plan = drover_plan::from_slice(text.as_bytes()).unwrap();
        let exited = "instruction 1 of 1 (install): exited with 1";
        for (line, told) in [
            ("joined with K10abcdef::server:0123456789", exited.to_owned()),
            ("login as hunter-number-2 failed", exited.to_owned()),
            (
                "no answer from https://10.0.0.1:9345",
                format!("{exited}: no answer from https://10.0.0.1:9345"),
            ),
            ("/var/lib/x is full", format!("{exited}: /var/lib/x is full")),
        ] {
            let said = format!("{exited}\n{line}");
            let outputs = BTreeMap::from([(keys::AGENT_REASON, BASE64_STANDARD.encode(said))]);
            assert_eq!(reason(Some(&plan), Some(&gzip(&drover_plan::to_vec(&outputs).unwrap()))), told);
        }
    }

    #[test]
    fn without_a_readable_report_there_is_no_reason() {
        assert_eq!(of(&[]), "");
        assert_eq!(reason(None, None), "");
        assert_eq!(reason(None, Some(b"nonsense")), "");
    }

    #[test]
    fn the_same_failure_is_told_in_the_same_words_at_any_time() {
        let at = |folder: &str, time: &str| {
            of(&[(keys::AGENT_REASON, &format!("{time} cannot create /w/{folder}/x on 10.20.30.40:6443"))])
        };
        let first = at("20260101-150405", "2026-01-01T15:04:05Z");
        assert_eq!(first, "… cannot create /w/…/x on 10.20.30.40:6443");
        assert_eq!(at("20260101-150441", "2026-01-01T15:04:41.123Z"), first);
        assert_eq!(at("20260102-150405", "15:04:05"), first);
    }

    #[test]
    fn of_a_long_reason_beginning_and_end_stay_in_one_line() {
        let long = format!("no space left; {}\nlast words", "ä".repeat(LIMIT));
        let told = of(&[(keys::AGENT_REASON, &long)]);
        assert_eq!(told.chars().count(), LIMIT);
        assert!(told.starts_with("no space left; ää") && told.ends_with("ä: last words"), "{told}");
        assert!(told.contains("ä…ä"), "{told}");
    }
}
