//! Keeps credentials out of the log, whatever the level.
//!
//! Plans, file contents and environments are never logged as a whole. What remains are lines that instructions print
//! and messages of others: there, values that came to us under a telling name are blotted out.

/// What stands for a secret in a log.
const BLOT: &str = "[redacted]";
/// Shorter values are words like `true`, which would blot out half of every line.
const SHORTEST: usize = 6;

const TELLING: &[&str] = &["TOKEN", "PASSWORD", "PASSWD", "SECRET", "KEY", "AUTH", "CREDENTIAL", "PROXY"];

/// Blots out known secrets.
#[derive(Clone, Default)]
pub struct Redactor {
    secrets: Vec<String>,
}

impl Redactor {
    /// Secrets of an environment: values whose name tells that they are one.
    pub fn of_env<'a>(env: impl IntoIterator<Item = &'a str>) -> Self {
        let mut redactor = Self::default();
        for (name, value) in env.into_iter().filter_map(|entry| entry.split_once('=')) {
            let name = name.to_ascii_uppercase();
            if TELLING.iter().any(|word| name.contains(word)) {
                redactor.add(value);
            }
        }
        redactor
    }

    /// One more secret.
    pub fn add(&mut self, secret: &str) {
        if secret.len() >= SHORTEST {
            self.secrets.push(secret.to_owned());
        }
    }

    /// The text without them.
    pub fn clean(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), BLOT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_under_telling_names_do_not_show() {
        let redactor =
            Redactor::of_env(["K3S_TOKEN=abc123def", "RESTART_STAMP=fffffff", "X_SECRET=yes", "broken"]);
        assert_eq!(redactor.clean("t=abc123def s=fffffff yes"), "t=[redacted] s=fffffff yes");
    }
}
