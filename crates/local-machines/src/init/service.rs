//! The settings of a service, parsed from its unit file. Pure functions.

use std::{path::PathBuf, time::Duration};

use nix::sys::signal::Signal;

use super::unitfile::{UnitFile, specifiers, time_span, words};

/// When a service counts as started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As soon as its process is running (`simple`, `exec`, `idle`).
    Simple,
    /// When it sends `READY=1`.
    Notify,
    /// When its processes have exited.
    Oneshot,
    /// When the first process has exited and left a daemon running.
    Forking,
}

/// The processes that are ended by a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillMode {
    ControlGroup,
    Mixed,
    Process,
    None,
}

/// Whether a service is restarted after it has exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    No,
    OnSuccess,
    OnFailure,
    OnAbnormal,
    Always,
}

/// One command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exec {
    /// The leading `-`: a failure is ignored.
    pub(crate) may_fail: bool,
    /// The leading `:`: variables are not expanded.
    pub(crate) literal: bool,
    pub(crate) words: Vec<String>,
}

/// The destination of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    Journal,
    Null,
    Append(PathBuf),
    Truncate(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) description: String,
    pub(crate) kind: Kind,
    pub(crate) start_pre: Vec<Exec>,
    pub(crate) start: Vec<Exec>,
    pub(crate) start_post: Vec<Exec>,
    pub(crate) stop: Vec<Exec>,
    pub(crate) stop_post: Vec<Exec>,
    pub(crate) reload: Vec<Exec>,
    pub(crate) environment: Vec<(String, String)>,
    /// Path, and whether the file may be missing.
    pub(crate) environment_files: Vec<(PathBuf, bool)>,
    pub(crate) working_directory: Option<(PathBuf, bool)>,
    pub(crate) user: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) output: Output,
    pub(crate) open_files: Option<u64>,
    pub(crate) restart: Restart,
    pub(crate) restart_sec: Duration,
    pub(crate) start_timeout: Option<Duration>,
    pub(crate) stop_timeout: Option<Duration>,
    pub(crate) kill_mode: KillMode,
    pub(crate) kill_signal: Signal,
    pub(crate) remain_after_exit: bool,
    pub(crate) success_codes: Vec<i32>,
    pub(crate) pid_file: Option<PathBuf>,
    /// At most `.0` starts within `.1`.
    pub(crate) start_limit: Option<(usize, Duration)>,
    /// Path, and whether it must be absent.
    pub(crate) conditions: Vec<(PathBuf, bool)>,
    pub(crate) after: Vec<String>,
    pub(crate) requires: Vec<String>,
    pub(crate) wants: Vec<String>,
}

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(90);

impl Service {
    /// Parses a service from its unit file.
    pub(crate) fn new(name: &str, hostname: &str, file: &UnitFile) -> Result<Service, String> {
        let text =
            |section: &str, key: &str| file.get(section, key).map(|value| specifiers(value, name, hostname));
        let service = |key: &str| text("Service", key);
        let commands = |key: &str| commands(name, hostname, file, key);
        let span = |section: &str, key: &str, default: Option<Duration>| match text(section, key) {
            None => Ok(default),
            Some(value) => time_span(&value).ok_or_else(|| format!("{key}={value} is not a time span")),
        };
        let kind = match service("Type").as_deref() {
            None if file.list("Service", "ExecStart").is_empty() => Kind::Oneshot,
            None | Some("simple" | "exec" | "idle") => Kind::Simple,
            Some("notify" | "notify-reload") => Kind::Notify,
            Some("oneshot") => Kind::Oneshot,
            Some("forking") => Kind::Forking,
            Some(other) => return Err(format!("Type={other} is not supported on local machines")),
        };
        let kill_mode = match service("KillMode").as_deref() {
            None | Some("control-group") => KillMode::ControlGroup,
            Some("mixed") => KillMode::Mixed,
            Some("process") => KillMode::Process,
            Some("none") => KillMode::None,
            Some(other) => return Err(format!("KillMode={other} is unknown")),
        };
        let restart = match service("Restart").as_deref() {
            None | Some("no") => Restart::No,
            Some("always") => Restart::Always,
            Some("on-success") => Restart::OnSuccess,
            Some("on-failure") => Restart::OnFailure,
            Some("on-abnormal" | "on-abort" | "on-watchdog") => Restart::OnAbnormal,
            Some(other) => return Err(format!("Restart={other} is unknown")),
        };
        let start = commands("ExecStart")?;
        if start.is_empty() && kind != Kind::Oneshot {
            return Err("ExecStart= is missing".to_owned());
        }
        if start.len() > 1 && kind != Kind::Oneshot {
            return Err("more than one ExecStart= requires Type=oneshot".to_owned());
        }
        // As in systemd, a oneshot has no time limit by default and all other types 90 seconds; 0 means no limit.
        let default_start = (kind != Kind::Oneshot).then_some(DEFAULT_TIMEOUT);
        let both = span("Service", "TimeoutSec", None)?;
        let limited = |timeout: Option<Duration>| timeout.filter(|span| !span.is_zero());
        let interval = span("Unit", "StartLimitIntervalSec", Some(Duration::from_secs(10)))?;
        let burst = match text("Unit", "StartLimitBurst") {
            None => 5,
            Some(value) => value.parse().map_err(|_| format!("StartLimitBurst={value} is not a number"))?,
        };
        let kill_signal = match service("KillSignal") {
            None => Signal::SIGTERM,
            Some(value) => value.parse().map_err(|_| format!("KillSignal={value} is not a signal"))?,
        };
        let paths = |section: &str, key: &str, sign: char| {
            file.list(section, key)
                .iter()
                .map(|value| {
                    let value = specifiers(value, name, hostname);
                    let bare = value.strip_prefix(sign);
                    (PathBuf::from(bare.unwrap_or(&value)), bare.is_some())
                })
                .collect::<Vec<_>>()
        };
        let environment = file
            .list("Service", "Environment")
            .iter()
            .flat_map(|line| words(&specifiers(line, name, hostname)))
            .filter_map(|pair| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
            .collect();
        Ok(Service {
            description: text("Unit", "Description").unwrap_or_else(|| name.to_owned()),
            kind,
            start_pre: commands("ExecStartPre")?,
            start,
            start_post: commands("ExecStartPost")?,
            stop: commands("ExecStop")?,
            stop_post: commands("ExecStopPost")?,
            reload: commands("ExecReload")?,
            environment,
            environment_files: paths("Service", "EnvironmentFile", '-'),
            working_directory: paths("Service", "WorkingDirectory", '-').pop(),
            user: service("User"),
            group: service("Group"),
            output: output(service("StandardOutput").as_deref()),
            open_files: service("LimitNOFILE").and_then(|value| match value.as_str() {
                "infinity" => Some(u64::MAX),
                other => other.split(':').next_back()?.parse().ok(),
            }),
            restart,
            restart_sec: span("Service", "RestartSec", Some(Duration::from_millis(100)))?
                .unwrap_or(DEFAULT_TIMEOUT),
            start_timeout: limited(span("Service", "TimeoutStartSec", both.or(default_start))?),
            stop_timeout: limited(span("Service", "TimeoutStopSec", both.or(Some(DEFAULT_TIMEOUT)))?),
            kill_mode,
            kill_signal,
            remain_after_exit: matches!(
                service("RemainAfterExit").as_deref(),
                Some("yes" | "true" | "1" | "on")
            ),
            success_codes: file
                .names("Service", "SuccessExitStatus")
                .iter()
                .filter_map(|code| code.parse().ok())
                .collect(),
            pid_file: service("PIDFile").map(PathBuf::from),
            start_limit: limited(interval).filter(|_| burst > 0).map(|interval| (burst, interval)),
            conditions: paths("Unit", "ConditionPathExists", '!'),
            after: file.names("Unit", "After"),
            requires: [file.names("Unit", "Requires"), file.names("Unit", "BindsTo")].concat(),
            wants: file.names("Unit", "Wants"),
        })
    }
}

fn commands(name: &str, hostname: &str, file: &UnitFile, key: &str) -> Result<Vec<Exec>, String> {
    file.list("Service", key)
        .iter()
        .map(|line| {
            let sign = |each: char| matches!(each, '-' | '@' | ':' | '+' | '!' | '|');
            let bare = line.trim_start_matches(sign);
            let signs = &line[..line.len() - bare.len()];
            let mut words = words(&specifiers(bare, name, hostname));
            if signs.contains('@') && words.len() > 1 {
                words.remove(1);
            }
            if words.is_empty() {
                return Err(format!("{key}={line} has no program"));
            }
            Ok(Exec { may_fail: signs.contains('-'), literal: signs.contains(':'), words })
        })
        .collect()
}

fn output(value: Option<&str>) -> Output {
    match value {
        Some("null") => Output::Null,
        Some(value) => match value.split_once(':') {
            Some(("append", path)) => Output::Append(path.into()),
            Some(("file" | "truncate", path)) => Output::Truncate(path.into()),
            _ => Output::Journal,
        },
        None => Output::Journal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(text: &str) -> Result<Service, String> {
        let mut file = UnitFile::default();
        file.read(text);
        Service::new("k3s.service", "host", &file)
    }

    #[test]
    fn unit_of_k3s_is_parsed() {
        let k3s = service(
            "[Unit]\nDescription=Lightweight Kubernetes\nWants=network-online.target\nAfter=network-online.target\n\
             [Install]\nWantedBy=multi-user.target\n[Service]\nType=notify\nEnvironmentFile=-/etc/default/%N\n\
             EnvironmentFile=-/etc/systemd/system/k3s.service.env\nKillMode=process\nDelegate=yes\nUser=root\n\
             LimitNOFILE=1048576\nTimeoutStartSec=0\nRestart=always\nRestartSec=5s\n\
             ExecStartPre=-/sbin/modprobe br_netfilter\nExecStart=/usr/local/bin/k3s \\\n    server \\\n",
        )
        .unwrap();
        assert_eq!(
            (k3s.kind, k3s.kill_mode, k3s.restart),
            (Kind::Notify, KillMode::Process, Restart::Always)
        );
        assert_eq!(k3s.environment_files[0], (PathBuf::from("/etc/default/k3s"), true));
        assert_eq!((k3s.start_timeout, k3s.restart_sec), (None, Duration::from_secs(5)));
        assert!(k3s.start_pre[0].may_fail);
        assert_eq!(k3s.start[0].words, ["/usr/local/bin/k3s", "server"]);
        assert_eq!(k3s.open_files, Some(1_048_576));
    }

    #[test]
    fn unit_of_the_agent_is_parsed() {
        let agent = service(
            "[Service]\nType=simple\nRestart=always\nRestartSec=5s\nEnvironment=A=b \"C=d e\"\n\
             ExecStart=/usr/local/bin/rancher-system-agent sentinel\n",
        )
        .unwrap();
        assert_eq!((agent.kind, agent.kill_mode), (Kind::Simple, KillMode::ControlGroup));
        assert_eq!(agent.environment[1], ("C".to_owned(), "d e".to_owned()));
        assert_eq!(agent.start_timeout, Some(DEFAULT_TIMEOUT));
        assert_eq!(agent.start_limit, Some((5, Duration::from_secs(10))));
    }

    #[test]
    fn unsupported_settings_are_errors() {
        for (text, cause) in [
            ("[Service]\nType=simple\n", "ExecStart= is missing"),
            ("[Service]\nExecStart=/a\nExecStart=/b\n", "more than one"),
            ("[Service]\nType=dbus\nExecStart=/a\n", "Type=dbus"),
            ("[Service]\nExecStart=/a\nRestartSec=soon\n", "RestartSec=soon"),
        ] {
            let error = service(text).unwrap_err();
            assert!(error.contains(cause), "{error}");
        }
    }
}
