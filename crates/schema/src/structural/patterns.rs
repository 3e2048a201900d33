//! The patterns of a schema.
//!
//! A text of ten characters can become an automaton of megabytes, and a schema can have thousands of patterns. Equal ones
//! are compiled once, most are small, and of large ones a schema may have a few.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

/// How many different patterns a schema may have.
const MOST: usize = 1_000;
/// What most patterns stay below, compiled.
const SMALL_BYTES: usize = 64 << 10;
/// What none may exceed, and how many of a schema may exceed the other limit.
const LARGE_BYTES: usize = 4 << 20;
const LARGE_MOST: usize = 20;

#[derive(Default)]
struct Patterns {
    compiled: HashMap<String, Regex>,
    large: usize,
}

thread_local! {
    /// Those of the schema that is being parsed on this thread.
    static PATTERNS: RefCell<Patterns> = RefCell::default();
}

/// Counts the patterns that `parse` compiles as those of one schema.
pub(super) fn of_one_schema<T>(parse: impl FnOnce() -> T) -> T {
    PATTERNS.take();
    let parsed = parse();
    PATTERNS.take();
    parsed
}

/// Compiles a pattern, or says why not.
pub(super) fn compile(source: &str) -> Result<Regex, String> {
    PATTERNS.with_borrow_mut(|patterns| patterns.compile(source))
}

impl Patterns {
    fn compile(&mut self, source: &str) -> Result<Regex, String> {
        if let Some(regex) = self.compiled.get(source) {
            return Ok(regex.clone());
        }
        if self.compiled.len() >= MOST {
            return Err(format!("the schema has more than {MOST} different patterns"));
        }
        let regex = match build(source, SMALL_BYTES) {
            Err(regex::Error::CompiledTooBig(_)) if self.large >= LARGE_MOST => {
                return Err(format!("more than {LARGE_MOST} patterns of the schema are too large"));
            }
            Err(regex::Error::CompiledTooBig(_)) => {
                self.large += 1;
                build(source, LARGE_BYTES)
            }
            built => built,
        };
        let regex = regex.map_err(|error| error.to_string())?;
        self.compiled.insert(source.to_owned(), regex.clone());
        Ok(regex)
    }
}

fn build(source: &str, bytes: usize) -> Result<Regex, regex::Error> {
    // The second limit is for what a search keeps between two texts.
    RegexBuilder::new(source).size_limit(bytes).dfa_size_limit(bytes).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_has_few_large_and_not_too_many_small_patterns() {
        of_one_schema(|| {
            for n in 0..LARGE_MOST {
                assert!(compile(&format!("^\\pL{{{}}}$", 20 + n)).is_ok());
            }
            assert!(compile("^\\pL{90}$").unwrap_err().contains("too large"));
            assert!(compile("^(\\pL{900}){900}$").is_err());
            for n in 0..MOST {
                let _ = compile(&format!("^a{{{n}}}$"));
            }
            assert!(compile("^b$").unwrap_err().contains("different patterns"));
            assert!(compile("^a{7}$").is_ok());
        });
        assert!(of_one_schema(|| compile("^b$")).is_ok());
    }
}
