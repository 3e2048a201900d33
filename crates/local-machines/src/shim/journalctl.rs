//! `journalctl`: prints the units' logs. `-u` (repeatable), `-n`, `-f`, `-r`, `-o cat|short|short-iso`, `-e`,
//! `--no-pager`.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::PathBuf,
    time::Duration,
};

use crate::init::journal::{LOGS, entry, path};

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    units: Vec<String>,
    lines: Option<usize>,
    follow: bool,
    reverse: bool,
    quiet: bool,
    output: String,
}

pub(super) fn main(args: &[String]) -> i32 {
    let options = match parse(args) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("journalctl: {error}");
            return 1;
        }
    };
    match print(&options) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("journalctl: {error}");
            1
        }
        _ => 0,
    }
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (flag, inline) = match arg.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => (flag.to_owned(), Some(value.to_owned())),
            // The value can follow a short option directly: -n50, -uk3s.
            _ if arg.len() > 2 && ["-n", "-u", "-o"].iter().any(|short| arg.starts_with(short)) => {
                (arg[..2].to_owned(), Some(arg[2..].to_owned()))
            }
            _ => (arg.clone(), None),
        };
        let mut value =
            || inline.clone().or_else(|| args.next().cloned()).ok_or(format!("{flag} requires a value"));
        match flag.as_str() {
            "-u" | "--unit" => {
                let unit = value()?;
                options.units.push(if unit.contains('.') { unit } else { format!("{unit}.service") });
            }
            "-n" | "--lines" => {
                let text = value()?;
                options.lines = match text.as_str() {
                    "all" => None,
                    other => Some(other.parse().map_err(|_| format!("{other} is not a number of lines"))?),
                };
            }
            "-o" | "--output" => options.output = value()?,
            "-f" | "--follow" => options.follow = true,
            "-r" | "--reverse" => options.reverse = true,
            "-e" | "--pager-end" => options.lines = options.lines.or(Some(1000)),
            "-q" | "--quiet" => options.quiet = true,
            "-a" | "--all" | "-l" | "--full" | "--no-pager" | "-x" | "--no-hostname" | "-b" | "--boot"
            | "-xe" | "-xeu" => {
                if flag == "-xeu" {
                    let unit = value()?;
                    options.units.push(if unit.contains('.') { unit } else { format!("{unit}.service") });
                }
            }
            other => return Err(format!("option {other} is not supported on local machines")),
        }
    }
    if options.follow && options.lines.is_none() {
        options.lines = Some(10);
    }
    Ok(options)
}

fn print(options: &Options) -> io::Result<()> {
    let files: Vec<PathBuf> = if options.units.is_empty() {
        let mut all: Vec<_> =
            fs::read_dir(LOGS)?.flatten().map(|entry| entry.path()).filter(|path| is_log(path)).collect();
        all.sort();
        all
    } else {
        options.units.iter().map(|unit| path(unit)).collect()
    };
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut out = BufWriter::new(io::stdout().lock());
    let mut lines = Vec::new();
    let mut readers = Vec::new();
    for file in files {
        for old in [file.with_extension("log.1"), file.clone()] {
            if let Ok(open) = File::open(&old) {
                let mut reader = BufReader::new(open);
                read_lines(&mut reader, &mut lines)?;
                if old == file {
                    readers.push(reader);
                }
            }
        }
    }
    // Times have varying precision, so compare them as times. The sort is stable.
    lines.sort_by_key(|line| entry(line).map(|entry| entry.time));
    let skip = options.lines.map_or(0, |lines_wanted| lines.len().saturating_sub(lines_wanted));
    let mut shown: Vec<&String> = lines.iter().skip(skip).collect();
    if options.reverse {
        shown.reverse();
    }
    if shown.is_empty() && !options.quiet && !options.follow {
        writeln!(out, "-- No entries --")?;
    }
    for line in shown {
        writeln!(out, "{}", render(line, hostname.trim(), &options.output))?;
    }
    out.flush()?;
    if !options.follow {
        return Ok(());
    }
    loop {
        let mut fresh = Vec::new();
        for reader in &mut readers {
            read_lines(reader, &mut fresh)?;
        }
        for line in &fresh {
            writeln!(out, "{}", render(line, hostname.trim(), &options.output))?;
        }
        out.flush()?;
        if fresh.is_empty() {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn is_log(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

fn read_lines(reader: &mut impl BufRead, lines: &mut Vec<String>) -> io::Result<()> {
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
    Ok(())
}

fn render(line: &str, hostname: &str, output: &str) -> String {
    let Some(entry) = entry(line) else { return line.to_owned() };
    match output {
        "cat" => entry.text.to_owned(),
        "short-iso" => format!("{} {hostname} {}: {}", entry.time, entry.source, entry.text),
        _ => format!("{} {hostname} {}: {}", entry.time.strftime("%b %d %H:%M:%S"), entry.source, entry.text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_rendering() {
        let args: Vec<String> = "-u k3s -n5 --no-pager -o cat".split(' ').map(str::to_owned).collect();
        let options = parse(&args).unwrap();
        assert_eq!((options.units, options.lines), (vec!["k3s.service".to_owned()], Some(5)));
        assert!(parse(&["--since".to_owned(), "now".to_owned()]).unwrap_err().contains("--since"));
        let line = "2026-11-15T20:30:01Z k3s[12]: hello";
        assert_eq!(render(line, "h", "cat"), "hello");
        assert_eq!(render(line, "h", ""), "Nov 15 20:30:01 h k3s[12]: hello");
        assert_eq!(render("torn", "h", ""), "torn");
    }
}
