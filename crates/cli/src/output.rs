//! Output for people and for scripts.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use drover_server::DataDir;
use drover_server::shell::quoted;
use serde::Serialize;

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Json,
    Yaml,
}

impl Format {
    /// The text of `objects`; `table` makes the one for people.
    pub(crate) fn render<T: Serialize>(
        self,
        objects: &T,
        table: impl FnOnce() -> String,
    ) -> anyhow::Result<String> {
        Ok(match self {
            Self::Table => table(),
            Self::Json => serde_json::to_string_pretty(objects)? + "\n",
            Self::Yaml => serde_saphyr::to_string(objects)?,
        })
    }
}

/// Prints the result of a command. A reader that closes the pipe is not an error; any other failure to write is.
pub(crate) fn answer(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    ignore_closed_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn ignore_closed_pipe(written: std::io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("failed to write the output")
        }
        _ => Ok(()),
    }
}

/// Prints a line of progress. The work continues if it cannot be written.
pub(crate) fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The same on stderr, for problems and for servers.
pub(crate) fn print_error_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Rows under headings, each column as wide as its widest cell.
pub(crate) fn columns(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = heading.iter().map(|h| h.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (cell, width) in cells.zip(&widths) {
            text.push_str(&format!("{cell:<width$}   "));
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut out = line(&mut heading.iter().copied());
    for row in rows {
        out.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    out
}

/// An age in the format of kubectl.
pub(crate) fn age(since: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=599 => format!("{}m{}s", seconds / 60, seconds % 60).replace("m0s", "m"),
        600..=10_799 => format!("{}m", seconds / 60),
        10_800..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A command line of this program with a data directory, quoted for a shell.
pub(crate) fn drover_at(data_dir: &DataDir, words: &[&str]) -> String {
    let called = std::env::args().next().filter(|name| !name.is_empty());
    let called = called.unwrap_or_else(|| "drover".to_owned());
    let dir = data_dir.path().display().to_string();
    let words = std::iter::once(called.as_str()).chain(words.iter().copied()).chain(["--data-dir", &dir]);
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// Messages of the client's layers, which add nothing for people.
const LAYERS: [&str; 2] = ["client error (Connect)", "tcp connect error"];

/// An error with its causes in one sentence, without repetitions.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        // kube prints a Status twice, the second time in its Debug format.
        let line = match cause.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => status.message.clone(),
            _ => cause.to_string(),
        };
        // The names of the client's layers add nothing.
        let line = line.strip_prefix("ServiceError: ").unwrap_or(&line).to_owned();
        if text.contains(&line) || LAYERS.contains(&line.as_str()) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&line);
        if matches!(cause.downcast_ref(), Some(kube::Error::Api(_))) {
            break;
        }
    }
    text
}

/// Adds a remedy to the error of a full disk. It is recognized by its text because it may come from another process.
/// Code that gets ENOSPC for another reason changes the text.
pub(crate) fn with_full_disk_remedy(error: anyhow::Error, data_dir: &Path) -> anyhow::Error {
    let text = chain(&error).to_lowercase();
    if !["no space left", "disk is full", "quota exceeded"].iter().any(|sign| text.contains(sign)) {
        return error;
    }
    error.context(format!(
        "no space left for data directory {}; free some space, or choose another directory with --data-dir",
        data_dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let rows = vec![vec!["a".into(), "long value".into()], vec!["longer".into(), "x".into()]];
        assert_eq!(columns(&["NAME", "B"], &rows), "NAME     B\na        long value\nlonger   x\n");
    }

    #[test]
    fn ages_have_the_format_of_kubectl() {
        let at = |s| jiff::Timestamp::from_second(s).unwrap();
        for (seconds, text) in [
            (5, "5s"),
            (130, "2m10s"),
            (120, "2m"),
            (700, "11m"),
            (7200, "120m"),
            (90_000, "25h"),
            (200_000, "2d"),
        ] {
            assert_eq!(age(at(0), at(seconds)), text);
        }
    }

    #[test]
    fn a_full_disk_comes_with_a_remedy() {
        let full = std::io::Error::from_raw_os_error(28);
        let error =
            with_full_disk_remedy(anyhow::Error::from(full).context("x cannot be written"), Path::new("/d"));
        let text = chain(&error);
        assert!(
            text.contains("data directory /d; free some") && text.contains("x cannot be written"),
            "{text}"
        );
        assert_eq!(chain(&with_full_disk_remedy(anyhow::anyhow!("other"), Path::new("/d"))), "other");
    }

    #[test]
    fn a_closed_pipe_is_ignored_and_other_failures_to_write_are_errors() {
        ignore_closed_pipe(Err(std::io::ErrorKind::BrokenPipe.into())).unwrap();
        let lost = ignore_closed_pipe(Err(std::io::ErrorKind::StorageFull.into())).unwrap_err();
        assert!(chain(&lost).starts_with("failed to write the output: "), "{lost:#}");
    }

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let error = anyhow::anyhow!("inner").context("outer: inner").context("top");
        assert_eq!(chain(&error), "top: outer: inner");
    }
}
