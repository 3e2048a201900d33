//! Quoting of words for a shell.

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    let plain = |each: char| each.is_ascii_alphanumeric() || "-_./:,=@%+".contains(each);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn quoted_words_are_read_back_by_a_shell() {
        assert_eq!(quoted("/var/lib/drover"), "/var/lib/drover");
        for word in ["", "a b", "it's", "$HOME", "a;b", "ä", "*"] {
            let line = format!("printf %s {}", quoted(word));
            let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
