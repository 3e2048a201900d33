//! Captures the output of instructions: keeps the tail up to a limit, and logs it line by line without secrets.

use crate::{
    host::{Sink, Source},
    redact::Redactor,
};

/// The maximum size of each stream of a periodic instruction in the report. A secret holds at most 1 MiB.
const KEPT: usize = 64 * 1024;
/// The maximum total size of the saved outputs of one pass, and of a single one, so that they fit into the secret and
/// into memory.
pub(super) const KEPT_TOTAL: usize = 512 * 1024;
/// Only the beginning of a longer line is logged.
const LOG_LINE: usize = 8 * 1024;
/// The maximum size that one run adds to the log. After that, only the size of the rest and its end are logged.
const LOGGED: usize = 256 * 1024;
/// The estimated size of a log line besides its text: time, level and label.
const LOG_PREFIX: usize = 128;
/// The size of the end that is logged if the log is truncated.
const LOGGED_END: usize = 8 * 1024;
/// The maximum size of the last line of a failed instruction in the error message.
const LAST_LINE: usize = 512;

/// The last bytes of a stream.
pub(super) struct Tail {
    bytes: Vec<u8>,
    limit: usize,
    dropped: u64,
}

impl Tail {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, dropped: 0 }
    }

    fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        // Trim in large steps, so that a lot of output costs linear time.
        if self.bytes.len() > self.limit + self.limit / 4 {
            let excess = self.bytes.len() - self.limit;
            self.bytes.drain(..excess);
            self.dropped += excess as u64;
        }
    }

    /// The kept bytes, with a first line that states how much was dropped.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        truncate(self.bytes, self.limit, self.dropped)
    }
}

const DROPPED: &str = " bytes of earlier output dropped]\n";

/// Truncates to the last `limit` bytes and states how much was dropped; `already` bytes were dropped before, in
/// addition to those that the first line states.
pub fn truncate(bytes: Vec<u8>, limit: usize, already: u64) -> Vec<u8> {
    let (before, rest) = dropped(&bytes);
    let excess = rest.len().saturating_sub(limit);
    if excess == 0 && already == 0 {
        return bytes;
    }
    let total = before.saturating_add(already).saturating_add(excess as u64);
    let mut out = format!("[{total}{DROPPED}").into_bytes();
    out.extend_from_slice(&rest[excess..]);
    out
}

/// The number of bytes that an earlier call dropped from an output, and the rest of it.
fn dropped(bytes: &[u8]) -> (u64, &[u8]) {
    let shown = bytes.strip_prefix(b"[").and_then(|rest| {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let count = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        Some((count, rest[digits..].strip_prefix(DROPPED.as_bytes())?))
    });
    shown.unwrap_or((0, bytes))
}

/// Shortens the longest outputs until their total is at most `total` bytes, not counting the lines that state it.
pub(super) fn share<'a>(outputs: impl Iterator<Item = &'a mut Vec<u8>>, total: usize) {
    let outputs: Vec<&mut Vec<u8>> = outputs.collect();
    let mut lengths: Vec<usize> = outputs.iter().map(|bytes| dropped(bytes).1.len()).collect();
    if lengths.iter().sum::<usize>() <= total {
        return;
    }
    // Short outputs leave their unused share to the others.
    lengths.sort_unstable();
    let (mut left, mut limit) = (total, 0);
    for (index, length) in lengths.iter().enumerate() {
        limit = left / (lengths.len() - index);
        if *length > limit {
            break;
        }
        left -= length;
    }
    for bytes in outputs {
        *bytes = truncate(std::mem::take(bytes), limit, 0);
    }
}

/// An incomplete line: its beginning, and the length of the rest.
#[derive(Default)]
struct Line {
    start: Vec<u8>,
    more: usize,
}

impl Line {
    fn push(&mut self, piece: &[u8], limit: usize) {
        let kept = piece.len().min(limit.saturating_sub(self.start.len()));
        self.start.extend_from_slice(&piece[..kept]);
        self.more += piece.len() - kept;
    }

    fn len(&self) -> usize {
        self.start.len() + self.more
    }
}

/// Captures both streams of a program.
pub(super) struct Capture<'a> {
    label: &'a str,
    redactor: &'a Redactor,
    lines: [Line; SOURCES.len()],
    logged: usize,
    unlogged: u64,
    /// Standard output only.
    pub(super) stdout: Tail,
    /// Standard error only.
    pub(super) stderr: Tail,
    /// Both, in their order.
    pub(super) combined: Tail,
}

impl<'a> Capture<'a> {
    /// Captures both streams together. `label` prefixes the log lines.
    pub(super) fn combined(label: &'a str, redactor: &'a Redactor) -> Self {
        Self::new(label, redactor, 0, KEPT_TOTAL)
    }

    /// Captures each stream separately.
    pub(super) fn separate(label: &'a str, redactor: &'a Redactor) -> Self {
        Self::new(label, redactor, KEPT, KEPT)
    }

    fn new(label: &'a str, redactor: &'a Redactor, each: usize, both: usize) -> Self {
        Self {
            label,
            redactor,
            lines: Default::default(),
            logged: 0,
            unlogged: 0,
            stdout: Tail::new(each),
            stderr: Tail::new(each),
            combined: Tail::new(both),
        }
    }

    /// Logs unfinished lines, and the end of the output if the log was truncated.
    pub(super) fn finish(&mut self) {
        for source in SOURCES {
            let rest = std::mem::take(&mut self.lines[index(source)]);
            if rest.len() > 0 {
                self.log(source, &rest);
            }
        }
        if self.unlogged == 0 {
            return;
        }
        tracing::info!("[{}]: {} bytes of output were not logged; the end:", self.label, self.unlogged);
        let kept = &self.combined.bytes;
        let most = usize::try_from(self.unlogged).unwrap_or(LOGGED_END).min(LOGGED_END);
        let end = &kept[kept.len().saturating_sub(most)..];
        // Start at a line break, because a partial secret would not be recognized.
        let whole = end.iter().position(|byte| *byte == b'\n').map_or(end.len(), |at| at + 1);
        let mut lines = Vec::new();
        let mut left = LOGGED_END;
        for line in end[whole..].rsplit(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let text = self.redactor.clean(String::from_utf8_lossy(line).trim_end_matches('\r'));
            left = left.saturating_sub(cost(&text));
            if left == 0 {
                break;
            }
            lines.push(text);
        }
        for text in lines.iter().rev() {
            tracing::info!("[{}:end]: {text}", self.label);
        }
    }

    /// The last non-empty line, without secrets.
    pub(super) fn last_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.combined.bytes);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(self.redactor.clean_start(line, LAST_LINE).0)
    }

    fn log(&mut self, source: Source, line: &Line) {
        if self.logged >= LOGGED {
            self.unlogged += line.len() as u64 + 1;
            return;
        }
        let text = String::from_utf8_lossy(&line.start);
        let stream = match source {
            Source::Stdout => "stdout",
            Source::Stderr => "stderr",
            Source::Both => "output",
        };
        let text = if line.more == 0 { text.trim_end_matches('\r') } else { &text };
        let (mut shown, length) = self.redactor.clean_start(text, LOG_LINE);
        let rest = text.len() - length + line.more;
        if rest > 0 {
            shown.push_str(&format!(" [{rest} more bytes in this line]"));
        }
        self.logged += cost(&shown);
        tracing::info!("[{}:{stream}]: {shown}", self.label);
    }
}

impl Sink for Capture<'_> {
    fn write(&mut self, source: Source, chunk: &[u8]) {
        match source {
            Source::Stdout => self.stdout.push(chunk),
            Source::Stderr => self.stderr.push(chunk),
            Source::Both => {}
        }
        self.combined.push(chunk);
        let limit = LOG_LINE + self.redactor.reach();
        let mut line = std::mem::take(&mut self.lines[index(source)]);
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                None => line.push(piece, limit),
                Some(piece) => {
                    line.push(piece, limit);
                    self.log(source, &line);
                    line.start.clear();
                    line.more = 0;
                }
            }
        }
        self.lines[index(source)] = line;
    }
}

/// The estimated size of a line in the log, where non-printable characters are escaped.
fn cost(text: &str) -> usize {
    LOG_PREFIX + text.chars().flat_map(char::escape_debug).map(char::len_utf8).sum::<usize>()
}

const SOURCES: [Source; 3] = [Source::Stdout, Source::Stderr, Source::Both];

fn index(source: Source) -> usize {
    match source {
        Source::Stdout => 0,
        Source::Stderr => 1,
        Source::Both => 2,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::Outputs, *};

    #[test]
    fn bytes_dropped_in_several_steps_are_summed() {
        let mut bytes = vec![b'a'; 100_000];
        for limit in [65_536, 32_768, 16_384] {
            bytes = truncate(bytes, limit, 0);
            let shown = format!("[{} bytes of earlier output dropped]\naaa", 100_000 - limit);
            assert!(bytes.starts_with(shown.as_bytes()), "{}", String::from_utf8_lossy(&bytes[..60]));
        }
        assert_eq!(truncate(bytes.clone(), 16_384, 0), bytes, "short enough already");
        assert_eq!(truncate(b"[12 bytes".to_vec(), 4, 0), b"[5 bytes of earlier output dropped]\nytes");
    }

    #[test]
    fn long_outputs_are_shortened_and_short_ones_are_kept() {
        let output = |index: usize, length: usize| (format!("i{index}"), vec![b'a'; length]);
        let mut outputs: Outputs = (0..40).map(|index| output(index, index * 1000)).collect();
        let before = outputs.clone();
        share(outputs.values_mut(), 1_000_000);
        assert_eq!(outputs, before);
        share(outputs.values_mut(), 400_000);
        let kept: usize = outputs.values().map(|bytes| dropped(bytes).1.len()).sum();
        assert!((399_900..=400_000).contains(&kept), "{kept}");
        assert_eq!(outputs["i5"], before["i5"]);
        for (name, bytes) in &outputs {
            let (lost, rest) = dropped(bytes);
            assert_eq!(lost as usize + rest.len(), before[name].len(), "{name}");
        }
    }

    #[test]
    fn the_tail_is_kept_with_the_number_of_dropped_bytes() {
        let redactor = Redactor::default();
        for (mut capture, limit) in
            [(Capture::separate("x_0", &redactor), KEPT), (Capture::combined("x_0", &redactor), KEPT_TOTAL)]
        {
            for _ in 0..80 {
                capture.write(Source::Stdout, &[b'a'; 65536]);
            }
            capture.write(Source::Stderr, b"the end");
            let combined = capture.combined.into_bytes();
            assert!((limit..limit + 100).contains(&combined.len()));
            assert!(combined.ends_with(b"the end"));
            let shown = format!("[{} bytes", 80 * 65536 + 7 - limit);
            assert!(combined.starts_with(shown.as_bytes()), "{}", String::from_utf8_lossy(&combined[..60]));
            if limit == KEPT {
                assert_eq!(capture.stderr.into_bytes(), b"the end");
            }
        }
    }

    #[test]
    fn the_last_line_is_not_empty_and_contains_no_secret() {
        let mut redactor = Redactor::default();
        redactor.env(["DB_PASSWORD=hunter22"]);
        let mut capture = Capture::combined("x_0", &redactor);
        assert_eq!(capture.last_line(), None);
        capture.write(Source::Stdout, b"fine\n");
        capture.write(Source::Stderr, b"login with hunter22 failed\r\n \n\n");
        assert_eq!(capture.last_line().unwrap(), "login with [redacted] failed");
        capture.write(Source::Stdout, &[b'z'; 5000]);
        assert_eq!(capture.last_line().unwrap().len(), LAST_LINE);
    }

    #[test]
    fn a_long_last_line_from_a_private_file_is_not_reported() {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let line = format!("certificate-data: {}", "q".repeat(700));
        let content = STANDARD.encode(format!("kind: Config\n{line}\n"));
        let file = drover_plan::File { path: "/etc/x.yaml".into(), content, ..Default::default() };
        let redactor = Redactor::of_files(&[file]);
        let mut capture = Capture::combined("x_0", &redactor);
        capture.write(Source::Stdout, line.as_bytes());
        assert_eq!(capture.last_line().unwrap(), "[redacted]");
    }
}
