//! Names of Machines.

use drover_api::names::ALPHABET;
use regex::Regex;

/// Length of a random suffix.
pub const SUFFIX: usize = 5;
/// The longest name, because it is also a host name.
const LONGEST: usize = 63;
/// The default name template.
pub const DEFAULT_TEMPLATE: &str = "{{ .machineSet.name }}-{{ .random }}";

/// A random suffix from a source of numbers below `n`.
pub fn suffix(mut below: impl FnMut(usize) -> usize) -> String {
    (0..SUFFIX).map(|_| char::from(ALPHABET[below(ALPHABET.len()) % ALPHABET.len()])).collect()
}

/// Renders a name template. A name that is too long is cut to 58 characters before the suffix.
pub fn render(template: &str, cluster: &str, set: &str, random: &str) -> String {
    let mut name = String::new();
    let mut rest = template;
    while let Some(start) = rest.find("{{") {
        let Some(length) = rest[start..].find("}}") else { break };
        name.push_str(&rest[..start]);
        match rest[start + 2..start + length].trim() {
            ".cluster.name" => name.push_str(cluster),
            ".machineSet.name" => name.push_str(set),
            ".random" => name.push_str(random),
            _ => {}
        }
        rest = &rest[start + length + 2..];
    }
    name.push_str(rest);
    if name.len() > LONGEST {
        let keep: String = name.chars().take(LONGEST - SUFFIX).collect();
        return format!("{keep}{random}");
    }
    name
}

/// Why a template is invalid.
pub fn check(template: &str) -> Result<(), String> {
    // Without the random part, all Machines would have the same name.
    let random = Regex::new(r"\{\{\s*\.random\s*\}\}").map_err(|error| error.to_string())?;
    if !random.is_match(template) {
        return Err("must contain {{ .random }}".to_owned());
    }
    let unknown = Regex::new(r"\{\{([^}]*)\}\}").map_err(|error| error.to_string())?;
    for found in unknown.captures_iter(template) {
        let variable = found[1].trim().to_owned();
        if ![".cluster.name", ".machineSet.name", ".random"].contains(&variable.as_str()) {
            return Err(format!(
                "unknown variable {variable}; use .cluster.name, .machineSet.name or .random"
            ));
        }
    }
    let sample = render(template, "cluster", "machineset", "bcdfg");
    let valid =
        sample.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.');
    let ends = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if !valid || !ends(sample.bytes().next()) || !ends(sample.bytes().last()) {
        return Err(format!("renders to {sample:?}, which is not a DNS name"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_template_and_stay_short() {
        assert_eq!(
            render(DEFAULT_TEMPLATE, "demo", "demo-workers-x7k2p", "bcdfg"),
            "demo-workers-x7k2p-bcdfg"
        );
        assert_eq!(render("{{.cluster.name}}.{{ .random }}", "demo", "set", "bcdfg"), "demo.bcdfg");
        let long = render(DEFAULT_TEMPLATE, "demo", &"a".repeat(80), "bcdfg");
        assert_eq!(long, format!("{}bcdfg", "a".repeat(58)));
    }

    #[test]
    fn templates_that_cannot_name_machines_are_rejected() {
        assert_eq!(check(DEFAULT_TEMPLATE), Ok(()));
        assert!(check("{{ .machineSet.name }}").unwrap_err().contains("{{ .random }}"));
        assert!(check("{{ .foo }}-{{ .random }}").unwrap_err().contains(".foo"));
        assert!(check("UP-{{ .random }}").unwrap_err().contains("DNS"));
    }
}
