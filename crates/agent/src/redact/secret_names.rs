//! Names that indicate a secret value, and the places where names and values appear.

const SECRET_PARTS: &[&str] =
    &["TOKEN", "PASS", "PWD", "SECRET", "KEY", "AUTH", "CREDENTIAL", "CREDS", "DSN", "COOKIE", "PRIVATE"];
/// Names of something related to a secret: `secretName`, `CA_KEY_FILE`.
const HARMLESS_ENDS: &[&str] =
    &["NAME", "NAMESPACE", "REF", "FILE", "PATH", "DIR", "TYPE", "MODE", "POLICY", "SIZE"];
/// Values that are never secret.
const TRIVIAL: &[&str] =
    &["true", "false", "none", "null", "auto", "default", "enabled", "disabled", "required", "optional"];

/// The scheme before the credential in a header.
const SCHEMES: &[&str] = &["bearer", "basic", "token", "negotiate", "digest"];

/// The same, but only as whole words of a name, because they are part of many other words.
const SECRET_WORDS: &[&str] = &["PW", "PSK", "OTP", "CRED"];

/// Whether a value with this name is secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let telling =
        SECRET_PARTS.iter().any(|word| name.contains(word)) || words.any(|word| SECRET_WORDS.contains(&word));
    telling && !HARMLESS_ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether the value is too common to be a secret.
pub(super) fn is_trivial(value: &str) -> bool {
    is_switch(value) || is_path(value) || value.starts_with('$')
}

/// Whether the value is one of a few choices.
pub(super) fn is_switch(value: &str) -> bool {
    TRIVIAL.iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// Base64 can also start with a slash, but rarely has a second one and none of its other characters.
pub(super) fn is_path(value: &str) -> bool {
    value.starts_with('/')
        && value.matches('/').count() >= 2
        && !value.contains(|c: char| c.is_whitespace() || "+=".contains(c))
}

/// Values with secret names in a text: `NAME=value` as in shells, `name: value` as in YAML and JSON.
pub(super) fn values(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| {
        let pairs = line.match_indices(['=', ':']).take(64);
        pairs.filter_map(move |(at, _)| {
            let before = line[..at].trim_end().trim_end_matches(['"', '\'']);
            let start = before
                .rfind(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)))
                .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
            let name = &before[start..];
            // `key` alone is used by tolerations and selectors.
            (is_secret_name(name) && !name.eq_ignore_ascii_case("key"))
                .then(|| secret_of(line[at + 1..].trim_start()))
        })
    })
}

/// Values after secret flags in a text: `--token value`.
pub(super) fn flag_values(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| {
        line.match_indices("--").take(64).filter_map(move |(at, _)| {
            let rest = &line[at..];
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)))?;
            let after = rest[end..].strip_prefix([' ', '\t'])?.trim_start();
            (is_secret_name(&rest[..end]) && !after.starts_with('-')).then(|| value(after))
        })
    })
}

/// The value without the scheme of a header: `Bearer` is not secret, but the rest is.
fn secret_of(text: &str) -> &str {
    let (before, rest) = match text.find(char::is_whitespace) {
        Some(at) => (&text[..at], text[at..].trim_start()),
        None => (text, ""),
    };
    let scheme = before.trim_matches(['"', '\'']);
    if SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        let end = rest.find(|c: char| c.is_whitespace() || "\"',;".contains(c)).unwrap_or(rest.len());
        return &rest[..end];
    }
    value(text)
}

fn value(text: &str) -> &str {
    match text.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let inner = &text[1..];
            inner.find(quote).map_or(inner, |end| &inner[..end])
        }
        _ => text.split(|c: char| c.is_whitespace() || ";&,|)}".contains(c)).next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_secret_names_are_found() {
        let text = "export DBPASS='a b'; X_TOKEN=$(cat f)\n\"token\": \"t1\",\n  db-password: p1 # c\n\
                    secretName: n\n- key: node/x\nplain: x\n{\"a\":{\"clientSecret\":\"s1\"},\"b\":1}";
        let found: Vec<&str> = values(text).filter(|value| !is_trivial(value)).collect();
        assert_eq!(found, ["a b", "t1", "p1", "s1"]);
        let headers = "curl -H 'Authorization: Bearer b1' -H \"authorization: Basic $B\"\nAuthorization: Bearer\nauth: b2";
        let found: Vec<&str> = values(headers).filter(|value| !is_trivial(value)).collect();
        assert_eq!(found, ["b1", "", "b2"]);
        let flags = "x --token f1 --api-key 'f 2' --token --name n --password=no -- --secret";
        assert_eq!(flag_values(flags).collect::<Vec<_>>(), ["f1", "f 2"]);
    }

    #[test]
    fn paths_and_switches_are_not_secret() {
        assert!(is_secret_name("KUBE_API_KEY") && !is_secret_name("KUBE_API_KEY_FILE"));
        assert!(
            is_secret_name("PW")
                && is_secret_name("db-pw")
                && is_secret_name("WIFI_PSK")
                && !is_secret_name("PWR_STATE")
        );
        assert!(
            is_trivial("/etc/ssl/x.key")
                && is_trivial("True")
                && !is_trivial("/a+b/c=")
                && !is_trivial("1234")
        );
    }
}
