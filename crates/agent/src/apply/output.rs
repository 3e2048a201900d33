//! What instructions print: kept up to a limit, tail first, and logged line by line without secrets.

use crate::{
    host::{Sink, Source},
    redact::Redactor,
};

/// How much of one instruction's output is kept for the report. A secret holds 1 MiB in all.
pub(super) const KEPT: usize = 64 * 1024;
/// A line longer than this is logged in pieces.
const LOG_LINE: usize = 8 * 1024;

/// The last bytes of a stream.
#[derive(Clone, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    dropped: u64,
}

impl Tail {
    fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        // Trimmed in large steps, so that a chatty program costs linear time.
        if self.bytes.len() > 2 * KEPT {
            let excess = self.bytes.len() - KEPT;
            self.bytes.drain(..excess);
            self.dropped += excess as u64;
        }
    }

    /// The kept bytes, with a first line that says how much is missing.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        truncate(self.bytes, KEPT, self.dropped)
    }
}

/// Shortens to the last `limit` bytes, saying so; `already` were dropped before.
pub fn truncate(bytes: Vec<u8>, limit: usize, already: u64) -> Vec<u8> {
    let excess = bytes.len().saturating_sub(limit);
    if excess == 0 && already == 0 {
        return bytes;
    }
    let mut out = format!("[{} bytes of earlier output dropped]\n", already + excess as u64).into_bytes();
    out.extend_from_slice(&bytes[excess..]);
    out
}

/// Collects both streams of one program.
pub(super) struct Capture<'a> {
    label: &'a str,
    redactor: &'a Redactor,
    lines: [Vec<u8>; 2],
    /// Standard output alone.
    pub(super) stdout: Tail,
    /// Standard error alone.
    pub(super) stderr: Tail,
    /// Both as they came.
    pub(super) combined: Tail,
}

impl<'a> Capture<'a> {
    /// `label` marks the log lines.
    pub(super) fn new(label: &'a str, redactor: &'a Redactor) -> Self {
        Self {
            label,
            redactor,
            lines: Default::default(),
            stdout: Tail::default(),
            stderr: Tail::default(),
            combined: Tail::default(),
        }
    }

    /// Logs what is left of unfinished lines.
    pub(super) fn finish(&mut self) {
        for source in [Source::Stdout, Source::Stderr] {
            let rest = std::mem::take(&mut self.lines[index(source)]);
            if !rest.is_empty() {
                self.log(source, &rest);
            }
        }
    }

    fn log(&self, source: Source, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let stream = if source == Source::Stdout { "stdout" } else { "stderr" };
        tracing::info!("[{}:{stream}]: {}", self.label, self.redactor.clean(text.trim_end_matches('\r')));
    }
}

impl Sink for Capture<'_> {
    fn write(&mut self, source: Source, chunk: &[u8]) {
        match source {
            Source::Stdout => self.stdout.push(chunk),
            Source::Stderr => self.stderr.push(chunk),
        }
        self.combined.push(chunk);
        let mut pending = std::mem::take(&mut self.lines[index(source)]);
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            pending.extend_from_slice(piece);
            if pending.ends_with(b"\n") {
                pending.pop();
                self.log(source, &pending);
                pending.clear();
            } else if pending.len() >= LOG_LINE {
                self.log(source, &pending);
                pending.clear();
            }
        }
        self.lines[index(source)] = pending;
    }
}

fn index(source: Source) -> usize {
    match source {
        Source::Stdout => 0,
        Source::Stderr => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_kept_and_the_loss_is_told() {
        let redactor = Redactor::default();
        let mut capture = Capture::new("x_0", &redactor);
        for _ in 0..80 {
            capture.write(Source::Stdout, &[b'a'; 65536]);
        }
        capture.write(Source::Stderr, b"the end");
        let combined = capture.combined.into_bytes();
        assert!(combined.len() < KEPT + 100);
        assert!(combined.ends_with(b"the end"));
        assert!(combined.starts_with(b"[51"), "{}", String::from_utf8_lossy(&combined[..60]));
        assert_eq!(capture.stderr.into_bytes(), b"the end");
    }
}
