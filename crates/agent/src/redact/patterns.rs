//! Secrets that are recognized by the text around them: passwords in URLs, and credentials after `Bearer`.

use std::borrow::Cow;

use super::{MASK, SHORTEST};

/// A user without a password that has this length is a token.
const TOKEN_LENGTH: usize = 16;
/// Words after `bearer` in ordinary sentences.
const WORDS: &[&str] = &["token", "tokens", "authentication", "authorization", "credential", "credentials"];

/// The text without such secrets.
pub fn clean(text: &str) -> Cow<'_, str> {
    mask(text, secrets(text))
}

/// The ranges of such secrets.
pub(super) fn secrets(text: &str) -> Vec<(usize, usize)> {
    let mut ranges = url_secrets(text);
    ranges.extend(scheme_secrets(text));
    ranges
}

/// The text with these ranges replaced.
pub(super) fn mask(text: &str, mut ranges: Vec<(usize, usize)>) -> Cow<'_, str> {
    if ranges.is_empty() {
        return Cow::Borrowed(text);
    }
    ranges.sort_unstable();
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for (start, end) in ranges {
        if start >= at {
            out.push_str(&text[at..start]);
            out.push_str(MASK);
        }
        at = at.max(end);
    }
    out.push_str(&text[at..]);
    Cow::Owned(out)
}

/// The passwords of URLs in a text.
pub(super) fn passwords(text: &str) -> impl Iterator<Item = &str> {
    url_secrets(text).into_iter().map(|(start, end)| &text[start..end])
}

fn url_secrets(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (at, separator) in text.match_indices("://") {
        let start = at + separator.len();
        let rest = &text[start..];
        let end = rest.find(|c: char| c.is_whitespace() || "/?#\"'<>`\\".contains(c)).unwrap_or(rest.len());
        // The last one, because a password can contain another that is not escaped.
        let Some(user) = rest[..end].rfind('@') else { continue };
        match rest[..user].find(':') {
            Some(colon) if colon + 1 < user => found.push((start + colon + 1, start + user)),
            None if user >= TOKEN_LENGTH => found.push((start, start + user)),
            _ => {}
        }
    }
    found
}

fn scheme_secrets(text: &str) -> Vec<(usize, usize)> {
    let lower = text.to_ascii_lowercase();
    let mut found = Vec::new();
    for (word, header_only) in [("bearer", false), ("basic", true)] {
        for (at, _) in lower.match_indices(word) {
            let rest = &text[at + word.len()..];
            let token = rest.trim_start_matches([' ', '\t', ':', '=', '"', '\'']);
            let start = at + word.len() + (rest.len() - token.len());
            let end = token.find(|c: char| !is_token(c)).unwrap_or(token.len());
            let header = lower[..at].trim_end().ends_with("authorization:");
            let talk = !header && (header_only || WORDS.contains(&&lower[start..start + end]));
            if start > at + word.len() && end >= SHORTEST && !talk {
                found.push((start, start + end));
            }
        }
    }
    found
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._~+/=:".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_urls_and_tokens_of_headers_do_not_show() {
        for (text, shown) in [
            ("postgres://u:DsPassS3cr3t@h/db", "postgres://u:[redacted]@h/db"),
            ("mysql://u:p@ss@tcp(h:3306)/db, again", "mysql://u:[redacted]@tcp(h:3306)/db, again"),
            ("to 'http://:x@proxy:3128'", "to 'http://:[redacted]@proxy:3128'"),
            ("https://ghp_0123456789abcdef@host/x", "https://[redacted]@host/x"),
            ("ssh://git@host/x http://host:80/a@b", "ssh://git@host/x http://host:80/a@b"),
            (
                "+ curl -H 'Authorization: Bearer abcd.efg' x",
                "+ curl -H 'Authorization: Bearer [redacted]' x",
            ),
            ("authorization: basic dTpw, bearer=xyz1", "authorization: basic [redacted], bearer=[redacted]"),
            ("the bearer token is basic knowledge", "the bearer token is basic knowledge"),
            ("Bearer", "Bearer"),
            ("é://ü:ö@ä bearer é", "é://ü:[redacted]@ä bearer é"),
        ] {
            assert_eq!(clean(text), shown);
        }
    }
}
