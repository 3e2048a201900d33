//! The patterns of a schema.
//!
//! A text of ten characters can compile to an automaton of megabytes, and a schema can have thousands of patterns.
//! Equal patterns are compiled once, most must be small, and a schema may have a few large ones.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

/// The maximum number of different patterns in a schema.
const MAX_PATTERNS: usize = 1_000;
/// The compiled size above which a pattern counts as large.
const SMALL_BYTES: usize = 64 << 10;
/// The maximum compiled size of a pattern, and the maximum number of large patterns in a schema.
const LARGE_BYTES: usize = 4 << 20;
const MAX_LARGE_PATTERNS: usize = 20;

#[derive(Default)]
struct Patterns {
    compiled: HashMap<String, Regex>,
    large: usize,
}

thread_local! {
    /// The patterns of the schema that this thread is parsing.
    static PATTERNS: RefCell<Patterns> = RefCell::default();
}

/// Counts the patterns compiled in `parse` as those of one schema.
pub(super) fn of_one_schema<T>(parse: impl FnOnce() -> T) -> T {
    PATTERNS.take();
    let parsed = parse();
    PATTERNS.take();
    parsed
}

/// Compiles a pattern, or returns the error.
pub(super) fn compile(source: &str) -> Result<Regex, String> {
    PATTERNS.with_borrow_mut(|patterns| patterns.compile(source))
}

impl Patterns {
    fn compile(&mut self, source: &str) -> Result<Regex, String> {
        if let Some(regex) = self.compiled.get(source) {
            return Ok(regex.clone());
        }
        if self.compiled.len() >= MAX_PATTERNS {
            return Err(format!("the schema has more than {MAX_PATTERNS} different patterns"));
        }
        let regex = match build(source, SMALL_BYTES) {
            Err(regex::Error::CompiledTooBig(_)) if self.large >= MAX_LARGE_PATTERNS => {
                return Err(format!("more than {MAX_LARGE_PATTERNS} patterns of the schema are too large"));
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
    // The second limit bounds the cache of a search.
    RegexBuilder::new(source).size_limit(bytes).dfa_size_limit(bytes).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patterns_of_a_schema_are_limited() {
        of_one_schema(|| {
            for n in 0..MAX_LARGE_PATTERNS {
                assert!(compile(&format!("^\\pL{{{}}}$", 20 + n)).is_ok());
            }
            assert!(compile("^\\pL{90}$").unwrap_err().contains("too large"));
            assert!(compile("^(\\pL{900}){900}$").is_err());
            for n in 0..MAX_PATTERNS {
                let _ = compile(&format!("^a{{{n}}}$"));
            }
            assert!(compile("^b$").unwrap_err().contains("different patterns"));
            assert!(compile("^a{7}$").is_ok());
        });
        assert!(of_one_schema(|| compile("^b$")).is_ok());
    }
}
