//! What instructions print: kept up to a limit, tail first, and logged line by line without secrets.

use crate::{
    host::{Sink, Source},
    redact::Redactor,
};

/// How much of each stream of a periodic instruction is kept for the report. A secret holds 1 MiB in all.
const KEPT: usize = 64 * 1024;
/// How much all saved outputs of one pass are together, and how much one of them is if it is alone: whatever it is, it fits into the secret and into little memory.
pub(super) const KEPT_TOGETHER: usize = 512 * 1024;
/// Of a line longer than this only the beginning is logged.
const LOG_LINE: usize = 8 * 1024;
/// How much one run of an instruction may add to the log, before it is told only how much more there was, and its end.
const LOGGED: usize = 256 * 1024;
/// What a line costs in the log besides its text: time, level and label.
const LOG_PREFIX: usize = 128;
/// How much of the end is logged when not all is.
const LOGGED_END: usize = 8 * 1024;
/// How much of the last line of an instruction that failed stands in the reason.
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
        // Trimmed in large steps, so that a chatty program costs linear time.
        if self.bytes.len() > self.limit + self.limit / 4 {
            let excess = self.bytes.len() - self.limit;
            self.bytes.drain(..excess);
            self.dropped += excess as u64;
        }
    }

    /// The kept bytes, with a first line that says how much is missing.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        truncate(self.bytes, self.limit, self.dropped)
    }
}

const DROPPED: &str = " bytes of earlier output dropped]\n";

/// Shortens to the last `limit` bytes, saying so; `already` were dropped before, besides what the first line says.
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

/// How much was dropped from an output by an earlier call, and what is left of it.
fn dropped(bytes: &[u8]) -> (u64, &[u8]) {
    let told = bytes.strip_prefix(b"[").and_then(|rest| {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let count = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        Some((count, rest[digits..].strip_prefix(DROPPED.as_bytes())?))
    });
    told.unwrap_or((0, bytes))
}

/// Shortens the longest outputs until all together are no more than `together` bytes, but for the lines that say so.
pub(super) fn share<'a>(outputs: impl Iterator<Item = &'a mut Vec<u8>>, together: usize) {
    let outputs: Vec<&mut Vec<u8>> = outputs.collect();
    let mut lengths: Vec<usize> = outputs.iter().map(|bytes| dropped(bytes).1.len()).collect();
    if lengths.iter().sum::<usize>() <= together {
        return;
    }
    // The short ones leave what they do not need to the others.
    lengths.sort_unstable();
    let (mut left, mut limit) = (together, 0);
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

/// A line that has not ended yet: its beginning, and how much more there was.
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

/// Collects both streams of one program.
pub(super) struct Capture<'a> {
    label: &'a str,
    redactor: &'a Redactor,
    lines: [Line; SOURCES.len()],
    logged: usize,
    unlogged: u64,
    /// Standard output alone.
    pub(super) stdout: Tail,
    /// Standard error alone.
    pub(super) stderr: Tail,
    /// Both as they came.
    pub(super) combined: Tail,
}

impl<'a> Capture<'a> {
    /// Of both streams together. `label` marks the log lines.
    pub(super) fn together(label: &'a str, redactor: &'a Redactor) -> Self {
        Self::new(label, redactor, 0, KEPT_TOGETHER)
    }

    /// Of each stream for itself.
    pub(super) fn apart(label: &'a str, redactor: &'a Redactor) -> Self {
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

    /// Logs what is left of unfinished lines, and the end of what was too much.
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
        tracing::info!("[{}]: {} bytes of output are not logged; its end:", self.label, self.unlogged);
        let kept = &self.combined.bytes;
        let most = usize::try_from(self.unlogged).unwrap_or(LOGGED_END).min(LOGGED_END);
        let end = &kept[kept.len().saturating_sub(most)..];
        // From the next whole line on: half a secret would not be known as one.
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

    /// The last line that says something, without secrets.
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
            shown.push_str(&format!(" [{rest} bytes more in this line]"));
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

/// What a line takes in the log, where what cannot be printed is written out.
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
    fn what_is_dropped_in_several_steps_is_told_as_one() {
        let mut bytes = vec![b'a'; 100_000];
        for limit in [65_536, 32_768, 16_384] {
            bytes = truncate(bytes, limit, 0);
            let told = format!("[{} bytes of earlier output dropped]\naaa", 100_000 - limit);
            assert!(bytes.starts_with(told.as_bytes()), "{}", String::from_utf8_lossy(&bytes[..60]));
        }
        assert_eq!(truncate(bytes.clone(), 16_384, 0), bytes, "enough is enough");
        assert_eq!(truncate(b"[12 bytes".to_vec(), 4, 0), b"[5 bytes of earlier output dropped]\nytes");
    }

    #[test]
    fn outputs_share_what_there_is_and_short_ones_stay_whole() {
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
    fn the_tail_is_kept_and_the_loss_is_told() {
        let redactor = Redactor::default();
        for (mut capture, limit) in
            [(Capture::apart("x_0", &redactor), KEPT), (Capture::together("x_0", &redactor), KEPT_TOGETHER)]
        {
            for _ in 0..80 {
                capture.write(Source::Stdout, &[b'a'; 65536]);
            }
            capture.write(Source::Stderr, b"the end");
            let combined = capture.combined.into_bytes();
            assert!((limit..limit + 100).contains(&combined.len()));
            assert!(combined.ends_with(b"the end"));
            let told = format!("[{} bytes", 80 * 65536 + 7 - limit);
            assert!(combined.starts_with(told.as_bytes()), "{}", String::from_utf8_lossy(&combined[..60]));
            if limit == KEPT {
                assert_eq!(capture.stderr.into_bytes(), b"the end");
            }
        }
    }

    #[test]
    fn the_last_line_says_something_and_no_secret() {
        let mut redactor = Redactor::default();
        redactor.env(["DB_PASSWORD=hunter22"]);
        let mut capture = Capture::together("x_0", &redactor);
        assert_eq!(capture.last_line(), None);
        capture.write(Source::Stdout, b"fine\n");
        capture.write(Source::Stderr, b"login with hunter22 failed\r\n \n\n");
        assert_eq!(capture.last_line().unwrap(), "login with [redacted] failed");
        capture.write(Source::Stdout, &[b'z'; 5000]);
        assert_eq!(capture.last_line().unwrap().len(), LAST_LINE);
    }

    #[test]
    fn a_long_last_line_out_of_a_private_file_is_no_reason() {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let line = format!("certificate-data: {}", "q".repeat(700));
        let content = STANDARD.encode(format!("kind: Config\n{line}\n"));
        let file = drover_plan::File { path: "/etc/x.yaml".into(), content, ..Default::default() };
        let redactor = Redactor::of_files(&[file]);
        let mut capture = Capture::together("x_0", &redactor);
        capture.write(Source::Stdout, line.as_bytes());
        assert_eq!(capture.last_line().unwrap(), "[redacted]");
    }
}
