//! Keeps credentials out of the log, whatever the level.
//!
//! Plans, file contents and environments are never logged as a whole. What remains are lines that instructions print
//! and messages of others. From what instructions print, these are blotted out:
//!
//! - values of the instruction's environment, and of `NAME=value` and `name: value` in its arguments, its script and the
//!   plan's files, whose name tells that they are secret (`PASS`, `TOKEN`, `KEY`, …), and each line of such a value;
//! - other values of the instruction's environment of eight characters or more, and each such line of one, unless they
//!   are ordinary (numbers, paths, hosts, versions) or their name tells that they are no secret (`PATH`, `…_VERSION`);
//! - lines of the plan's files that not everybody may read, or whose own name tells; of programs (`#!`) only such values;
//! - passwords in URLs, and what follows `Bearer` or `Authorization: Basic`.
//!
//! The last of these holds for every line of the log. Values of less than four characters, switches such as `true`, and
//! paths are shown under any name: blotting them out would hide half of every line. What is reported to the management plane, which made
//! the plan, is not changed.

mod ordinary;
pub mod patterns;
mod telling;

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use drover_plan::File;

/// What stands for a secret in a log.
const BLOT: &str = "[redacted]";
/// Shorter values would blot out half of every line.
const SHORTEST: usize = 4;
/// Shorter lines of a longer file say nothing: `}`, `- name`.
const SHORTEST_LINE: usize = 8;
/// Longer lines of a file are looked for like other secrets: they may be printed in part.
const LONGEST_LINE: usize = 4096;
/// How many words may stand before a line of a file: `12:`, `+ echo`.
const WORDS_BEFORE: usize = 16;

/// Blots out known secrets.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Wherever they occur; the longest first, since one may be part of another.
    secrets: Vec<String>,
    /// Hashes of lines: a file has many, and need not be kept for this.
    lines: HashSet<u64>,
}

impl Redactor {
    /// Secrets in the files of a plan.
    pub fn of_files(files: &[File]) -> Self {
        let mut redactor = Self::default();
        // Any other word means to write it; see `apply::files`.
        for file in files.iter().filter(|file| file.action != "delete" && !file.directory) {
            // What is no base64 will not be written either.
            let content = drover_plan::from_base64(&file.content).unwrap_or_default();
            redactor.file(file, &String::from_utf8_lossy(&content));
        }
        redactor
    }

    fn file(&mut self, file: &File, content: &str) {
        self.text(content);
        let mode = u32::from_str_radix(&file.permissions, 8).unwrap_or(0o600);
        let name = file.path.rsplit('/').next().unwrap_or_default();
        if content.starts_with("#!") || (mode & 0o004 != 0 && !telling::is_telling(name)) {
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

    /// And the secrets of an environment: what its values name, and the values themselves unless they are ordinary.
    pub fn env<'a>(&mut self, env: impl IntoIterator<Item = &'a str>) {
        for (name, value) in env.into_iter().filter_map(|entry| entry.split_once('=')) {
            if telling::is_telling(name) {
                self.add(value);
            }
            self.text(value);
            if ordinary::is_harmless(name, value) {
                continue;
            }
            // No shell reads these, so a dollar sign at their beginning is part of them.
            for line in value.lines().map(str::trim) {
                if line.len() >= SHORTEST_LINE && !ordinary::is_ordinary(line) {
                    self.insert(line);
                }
            }
        }
    }

    /// And the secrets of arguments: also what follows a telling flag.
    pub fn args<'a>(&mut self, args: impl IntoIterator<Item = &'a str>) {
        let mut flag = false;
        for arg in args {
            if flag && !arg.starts_with('-') {
                self.add(arg);
            }
            flag = arg.starts_with("--") && !arg.contains(['=', ' ', '\n']) && telling::is_telling(arg);
            self.text(arg);
        }
    }

    /// And the secrets that a text names.
    pub fn text(&mut self, text: &str) {
        telling::values(text).chain(telling::flag_values(text)).for_each(|value| self.add(value));
        patterns::passwords(text).for_each(|password| self.add(password));
    }

    /// One more secret.
    pub fn add(&mut self, secret: &str) {
        // Output comes line by line.
        for line in secret.lines().map(str::trim) {
            if line.len() < SHORTEST || telling::is_trivial(line) {
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

    /// One line of text without them.
    pub fn clean(&self, text: &str) -> String {
        if let Some(shown) = self.before_line_of_file(text) {
            return format!("{}{BLOT}", self.clean(shown));
        }
        patterns::blot(text, self.places(text)).into_owned()
    }

    /// How far beyond a piece of text must be looked, so that no secret is seen only by half.
    pub fn reach(&self) -> usize {
        self.secrets.first().map_or(0, String::len).max(LONGEST_LINE)
    }

    /// The beginning of a line without them: about `length` bytes of it, and how many those really are. The text itself
    /// reaches further (see [`Self::reach`]) or is the whole line.
    pub fn clean_start(&self, text: &str, length: usize) -> (String, usize) {
        if text.len() <= length {
            return (self.clean(text), text.len());
        }
        // Lines of files are known as a whole only, so this is told before anything is cut off.
        if let Some(shown) = self.before_line_of_file(text) {
            let (start, end) = self.clean_start(shown, length);
            return if end < shown.len() { (start, end) } else { (start + BLOT, text.len()) };
        }
        let places = self.places(text);
        let mut end = length;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        // Before a secret that would be cut: its first half alone is known to nobody.
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

    /// What stands before a line of a file, if the text ends with one.
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
