//! The syntax of unit files: sections and keys, words and quotes, specifiers, variables, time spans. Pure functions.

use std::{collections::BTreeMap, time::Duration};

/// The assignments of a unit file and its drop-ins, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UnitFile {
    entries: Vec<(String, String, String)>,
}

impl UnitFile {
    /// Adds the assignments of another file, such as a drop-in.
    pub(crate) fn read(&mut self, text: &str) {
        let mut section = String::new();
        for line in logical_lines(text) {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = name.to_owned();
            } else if let Some((key, value)) = line.split_once('=') {
                self.entries.push((section.clone(), key.trim().to_owned(), value.trim().to_owned()));
            }
        }
    }

    /// The value of a key with a single value: the last assignment.
    pub(crate) fn get(&self, section: &str, key: &str) -> Option<&str> {
        self.values(section, key).next_back().filter(|value| !value.is_empty())
    }

    /// All values of a key with several values. An empty assignment discards the previous ones.
    pub(crate) fn list(&self, section: &str, key: &str) -> Vec<&str> {
        let mut all = Vec::new();
        for value in self.values(section, key) {
            if value.is_empty() {
                all.clear();
            } else {
                all.push(value);
            }
        }
        all
    }

    /// The space-separated names in all assignments of a key.
    pub(crate) fn names(&self, section: &str, key: &str) -> Vec<String> {
        self.list(section, key).iter().flat_map(|value| value.split_whitespace()).map(str::to_owned).collect()
    }

    fn values<'a>(&'a self, section: &str, key: &str) -> impl DoubleEndedIterator<Item = &'a str> {
        self.entries
            .iter()
            .filter(move |(s, k, _)| s == section && k == key)
            .map(|(_, _, value)| value.as_str())
    }
}

/// Joins continued lines and removes comments, which are also allowed between continued lines.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut current = String::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with('#') || trimmed.starts_with(';') {
            continue;
        }
        if let Some(start) = line.strip_suffix('\\') {
            current.push_str(start);
            current.push(' ');
            continue;
        }
        current.push_str(line);
        lines.push(std::mem::take(&mut current).trim().to_owned());
    }
    lines.push(current.trim().to_owned());
    lines.retain(|line| !line.is_empty());
    lines
}

/// Splits a line at unquoted white space and resolves escapes, as systemd does for command lines and environments.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\\', _) => {
                let escaped = characters.next().map_or('\\', |next| match next {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    's' => ' ',
                    other => other,
                });
                word.get_or_insert_default().push(escaped);
            }
            (end, Some(open)) if end == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (space, None) if space.is_whitespace() => all.extend(word.take()),
            (other, _) => word.get_or_insert_default().push(other),
        }
    }
    all.extend(word);
    all
}

/// Replaces `%n`, `%i` and the like for the unit `name`.
pub(crate) fn specifiers(text: &str, name: &str, hostname: &str) -> String {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let (prefix, instance) = stem.split_once('@').unwrap_or((stem, ""));
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => out.push_str(name),
            Some('N') => out.push_str(stem),
            Some('p' | 'P') => out.push_str(prefix),
            Some('i' | 'I') => out.push_str(instance),
            Some('H') => out.push_str(hostname),
            Some('h') => out.push_str("/root"),
            Some('u') => out.push_str("root"),
            Some('t') => out.push_str("/run"),
            Some('S') => out.push_str("/var/lib"),
            Some('C') => out.push_str("/var/cache"),
            Some('L') => out.push_str("/var/log"),
            Some('E') => out.push_str("/etc"),
            Some('T') => out.push_str("/tmp"),
            Some('%') | None => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
        }
    }
    out
}

/// Expands `${NAME}` within words, and `$NAME` as a separate word, which is split. Unset variables are empty.
pub(crate) fn expand(words: &[String], env: &BTreeMap<String, String>) -> Vec<String> {
    let mut out = Vec::new();
    for word in words {
        let whole = word.strip_prefix('$').filter(|name| is_name(name));
        match whole {
            Some(name) => {
                out.extend(
                    env.get(name).into_iter().flat_map(|value| value.split_whitespace()).map(str::to_owned),
                );
            }
            None => out.push(expand_word(word, env)),
        }
    }
    out
}

fn expand_word(word: &str, env: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = tail.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            out.push_str(env.get(name).map_or("", String::as_str));
            rest = after;
        } else {
            out.push('$');
            rest = tail;
        }
    }
    out.push_str(rest);
    out
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|each| each.is_ascii_alphanumeric() || each == '_')
}

/// The variables of an EnvironmentFile.
pub(crate) fn environment_file(text: &str) -> Vec<(String, String)> {
    logical_lines(text)
        .iter()
        .filter_map(|line| {
            let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
            let value = value.trim();
            let unquoted = ['"', '\''].into_iter().find_map(|quote| {
                value.strip_prefix(quote)?.strip_suffix(quote).map(|inner| match quote {
                    '"' => inner.replace("\\\"", "\"").replace("\\\\", "\\"),
                    _ => inner.to_owned(),
                })
            });
            Some((name.trim().to_owned(), unquoted.unwrap_or_else(|| value.to_owned())))
        })
        .filter(|(name, _)| is_name(name))
        .collect()
}

/// Parses a time span such as `5`, `100ms` or `1min 30s`. `Some(None)` means infinity.
pub(crate) fn time_span(text: &str) -> Option<Option<Duration>> {
    if text.trim() == "infinity" {
        return Some(None);
    }
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|each: char| !each.is_ascii_digit() && each != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|each: char| !each.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "us" | "usec" => 1e-6,
            "ms" | "msec" => 1e-3,
            "" | "s" | "sec" | "second" | "seconds" => 1.0,
            "m" | "min" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86400.0,
            _ => return None,
        };
        total += Duration::try_from_secs_f64(number * unit).ok()?;
        rest = rest[letters..].trim_start();
    }
    Some(Some(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continued_lines_comments_and_empty_assignments() {
        let mut file = UnitFile::default();
        file.read(
            "# c\n[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n# between\n\t'--debug' \\\n\n",
        );
        assert_eq!(
            words(file.get("Service", "ExecStart").unwrap()),
            ["/usr/local/bin/k3s", "server", "--debug"]
        );
        file.read("[Service]\nEnvironment=A=1\nEnvironment=\nEnvironment=B=2\n[Install]\nWantedBy=a b\nWantedBy=c\n");
        assert_eq!(file.list("Service", "Environment"), ["B=2"]);
        assert_eq!(file.names("Install", "WantedBy"), ["a", "b", "c"]);
        assert_eq!(file.get("Unit", "ExecStart"), None);
    }

    #[test]
    fn words_keep_quotes_and_escapes() {
        let line = r#"/bin/sh -xc '! /usr/bin/systemctl is-enabled --quiet x 2>/dev/null' "a \"b\"" '' c\ d"#;
        assert_eq!(
            words(line),
            ["/bin/sh", "-xc", "! /usr/bin/systemctl is-enabled --quiet x 2>/dev/null", "a \"b\"", "", "c d"]
        );
    }

    #[test]
    fn specifiers_of_plain_and_template_units() {
        assert_eq!(
            specifiers("-/etc/default/%N %n 100%%", "k3s.service", "h"),
            "-/etc/default/k3s k3s.service 100%"
        );
        assert_eq!(specifiers("%p %i %H %z", "a@b.service", "h"), "a b h %z");
    }

    #[test]
    fn variables_are_split_only_as_a_separate_word() {
        let env = BTreeMap::from([("A".to_owned(), "x y".to_owned())]);
        let words = ["$A", "${A}!", "$NONE", "-${NONE}-", "$$A", "1$A"].map(str::to_owned);
        assert_eq!(expand(&words, &env), ["x", "y", "x y!", "--", "$A", "1$A"]);
    }

    #[test]
    fn environment_files_and_time_spans() {
        let text = "# no\nA=1\nB=\"two words\"\nC='x \"y\"'\n; no\nbad line\nexport D=4\nE=a=b\n";
        let pairs: Vec<_> = environment_file(text);
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("A", "1"), ("B", "two words"), ("C", "x \"y\""), ("D", "4"), ("E", "a=b")]);
        assert_eq!(time_span("5s"), Some(Some(Duration::from_secs(5))));
        assert_eq!(time_span("1min 30s"), Some(Some(Duration::from_secs(90))));
        assert_eq!(time_span("100ms"), Some(Some(Duration::from_millis(100))));
        assert_eq!(time_span("infinity"), Some(None));
        assert_eq!((time_span("soon"), time_span("")), (None, None));
    }
}
