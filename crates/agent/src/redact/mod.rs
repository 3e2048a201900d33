//! Removes credentials from the log, at every level.
//!
//! Plans, file contents and environments are never logged as a whole. What remains are lines that instructions print
//! and messages of others. In the output of instructions, these are replaced:
//!
//! - values of the instruction's environment, and of `NAME=value` and `name: value` in its arguments, its script and the
//!   plan's files, whose name indicates a secret (`PASS`, `TOKEN`, `KEY`, …), and each line of such a value;
//! - other values of the instruction's environment with eight or more characters, and each such line of a value, unless they
//!   are ordinary (numbers, paths, hosts, versions) or their name is harmless (`PATH`, `…_VERSION`);
//! - lines of the plan's files that are not readable by everyone or have a secret name; of programs (`#!`) only such values;
//! - passwords in URLs, and credentials after `Bearer` or `Authorization: Basic`.
//!
//! The last item applies to every line of the log. Values with less than four characters, switches such as `true`, and
//! paths are never replaced, because they would make most lines unreadable. Reports to the management plane, which
//! wrote the plan, are not changed.

mod ordinary;
pub mod patterns;
mod secret_names;

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use drover_plan::File;

/// The replacement of a secret in a log.
const MASK: &str = "[redacted]";
/// Shorter values would hide parts of most lines.
const SHORTEST: usize = 4;
/// Shorter lines of a multi-line file are not secrets: `}`, `- name`.
const SHORTEST_LINE: usize = 8;
/// Longer lines of a file are searched like other secrets, because they can be printed in part.
const LONGEST_LINE: usize = 4096;
/// How many words may precede a line of a file: `12:`, `+ echo`.
const WORDS_BEFORE: usize = 16;

/// Replaces known secrets.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Replaced anywhere; the longest first, because one can contain another.
    secrets: Vec<String>,
    /// Hashes of lines, because a file can have many lines.
    lines: HashSet<u64>,
}

impl Redactor {
    /// The secrets in the files of a plan.
    pub fn of_files(files: &[File]) -> Self {
        let mut redactor = Self::default();
        // Every other action means to write the file; see `apply::files`.
        for file in files.iter().filter(|file| file.action != "delete" && !file.directory) {
            // Invalid base64 will not be written either.
            let content = drover_plan::from_base64(&file.content).unwrap_or_default();
            redactor.file(file, &String::from_utf8_lossy(&content));
        }
        redactor
    }

    fn file(&mut self, file: &File, content: &str) {
        self.text(content);
        let mode = u32::from_str_radix(&file.permissions, 8).unwrap_or(0o600);
        let name = file.path.rsplit('/').next().unwrap_or_default();
        if content.starts_with("#!") || (mode & 0o004 != 0 && !secret_names::is_secret_name(name)) {
            return;
        }
        let mut lines = content.lines().map(str::trim).filter(|line| !line.is_empty());
        if let (Some(only), None) = (lines.next(), lines.next()) {
            self.add(only);
            return;
        }
        for line in content.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE) {
            if line.len() > LONGEST_LINE {
                self.add(line);
            } else {
                self.lines.insert(hash(line));
            }
        }
    }

    /// Adds the secrets of an environment: values with a secret name, and all values that are not ordinary.
    pub fn env<'a>(&mut self, env: impl IntoIterator<Item = &'a str>) {
        for (name, value) in env.into_iter().filter_map(|entry| entry.split_once('=')) {
            if secret_names::is_secret_name(name) {
                self.add(value);
            }
            self.text(value);
            if ordinary::is_harmless(name, value) {
                continue;
            }
            // These are not read by a shell, so a dollar sign at the beginning belongs to the value.
            for line in value.lines().map(str::trim) {
                if line.len() >= SHORTEST_LINE && !ordinary::is_ordinary(line) {
                    self.insert(line);
                }
            }
        }
    }

    /// Adds the secrets of arguments, including the value after a secret flag.
    pub fn args<'a>(&mut self, args: impl IntoIterator<Item = &'a str>) {
        let mut flag = false;
        for arg in args {
            if flag && !arg.starts_with('-') {
                self.add(arg);
            }
            flag =
                arg.starts_with("--") && !arg.contains(['=', ' ', '\n']) && secret_names::is_secret_name(arg);
            self.text(arg);
        }
    }

    /// Adds the secrets in a text.
    pub fn text(&mut self, text: &str) {
        secret_names::values(text).chain(secret_names::flag_values(text)).for_each(|value| self.add(value));
        patterns::passwords(text).for_each(|password| self.add(password));
    }

    /// Adds one secret.
    pub fn add(&mut self, secret: &str) {
        // Output is processed line by line.
        for line in secret.lines().map(str::trim) {
            if line.len() < SHORTEST || secret_names::is_trivial(line) {
                continue;
            }
            self.insert(line);
        }
    }

    fn insert(&mut self, line: &str) {
        let at = self.secrets.partition_point(|known| (known.len(), known.as_str()) > (line.len(), line));
        if self.secrets.get(at).is_none_or(|known| known != line) {
            self.secrets.insert(at, line.to_owned());
        }
    }

    /// One line of text without secrets.
    pub fn clean(&self, text: &str) -> String {
        if let Some(shown) = self.before_line_of_file(text) {
            return format!("{}{MASK}", self.clean(shown));
        }
        patterns::mask(text, self.places(text)).into_owned()
    }

    /// How far the text must extend beyond a piece so that no secret is seen only in part.
    pub fn reach(&self) -> usize {
        self.secrets.first().map_or(0, String::len).max(LONGEST_LINE)
    }

    /// The beginning of a line without secrets: about `length` bytes, and their exact number. The text must extend
    /// further (see [`Self::reach`]) or be the whole line.
    pub fn clean_start(&self, text: &str, length: usize) -> (String, usize) {
        if text.len() <= length {
            return (self.clean(text), text.len());
        }
        // Lines of files are known only as a whole, so check them before the text is cut.
        if let Some(shown) = self.before_line_of_file(text) {
            let (start, end) = self.clean_start(shown, length);
            return if end < shown.len() { (start, end) } else { (start + MASK, text.len()) };
        }
        let places = self.places(text);
        let mut end = length;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        // Cut before a secret, because half of a secret would not be recognized.
        while let Some((start, _)) = places.iter().find(|(start, after)| (*start + 1..*after).contains(&end))
        {
            end = *start;
        }
        (self.clean(&text[..end]), end)
    }

    fn places(&self, text: &str) -> Vec<(usize, usize)> {
        let mut places = patterns::secrets(text);
        for secret in &self.secrets {
            places.extend(text.match_indices(secret.as_str()).map(|(at, found)| (at, at + found.len())));
        }
        places
    }

    /// The text before a line of a file, if the text ends with one.
    fn before_line_of_file<'t>(&self, text: &'t str) -> Option<&'t str> {
        if self.lines.is_empty() {
            return None;
        }
        let text = text.trim_end();
        let boundary = |(at, c): (usize, char)| {
            (c.is_whitespace() || ":+<>|'\"".contains(c)).then_some(at + c.len_utf8())
        };
        let starts = std::iter::once(0).chain(text.char_indices().filter_map(boundary));
        let ends = starts.take(WORDS_BEFORE).find(|start| {
            let rest = text[*start..].trim_start();
            rest.len() >= SHORTEST_LINE && self.lines.contains(&hash(rest))
        });
        ends.map(|start| &text[..start])
    }
}

fn hash(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
