//! Logs in the original's format: to standard output, which systemd collects, or to the sink of the service manager.

use std::{
    fmt::{self, Write as _},
    io::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

use crate::redact::patterns;

/// Parses `CATTLE_LOGLEVEL`; `None` if it is not a level of the original.
pub fn parse_level(text: &str) -> Option<LevelFilter> {
    Some(match text.to_ascii_lowercase().as_str() {
        "trace" => LevelFilter::TRACE,
        "debug" => LevelFilter::DEBUG,
        "" | "info" => LevelFilter::INFO,
        "warn" | "warning" => LevelFilter::WARN,
        "error" | "fatal" | "panic" => LevelFilter::ERROR,
        _ => return None,
    })
}

/// Receives one line of the log.
pub type Sink = fn(&Level, &str);

/// Starts logging; only the first call has an effect.
pub fn init(level: LevelFilter, sink: Sink) {
    // After a second call, the first logger stays active, which is fine.
    let _ = tracing::subscriber::set_global_default(Logger { level, sink, spans: AtomicU64::new(1) });
}

/// Writes a line to standard output.
pub fn stdout(_: &Level, line: &str) {
    // Errors are ignored, because there is no other place to report them.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

/// A hand-written subscriber: a general one uses more memory than the rest of the agent.
struct Logger {
    level: LevelFilter,
    sink: Sink,
    spans: AtomicU64,
}

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries log requests, which contain credentials.
        *metadata.level() <= self.level && metadata.target().starts_with("drover")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed).max(1))
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = match *event.metadata().level() {
            Level::TRACE => "trace",
            Level::DEBUG => "debug",
            Level::INFO => "info",
            Level::WARN => "warning",
            Level::ERROR => "error",
        };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let now = jiff::Timestamp::now();
        // Messages of others, mostly errors, can contain a URL or a header.
        let (message, rest) = (patterns::clean(&fields.message), patterns::clean(&fields.rest));
        let line = format!("time=\"{now:.3}\" level={level} msg={message:?}{rest}\n");
        (self.sink)(event.metadata().level(), &line);
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.rest, " {}={value:?}", field.name())
        };
    }
}
