//! The commands of `systemctl` that installers of K3s and RKE2 and the agent use, with systemd's exit codes.

use std::{fmt::Write, str::FromStr, sync::Arc};

use nix::{sys::signal::Signal, unistd::Pid};

use super::{
    journal,
    manager::Manager,
    processes,
    unit::{ActiveState, UnitStatus},
};

/// The output and exit code of a call.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: i32,
    /// The caller requested the end of the machine; true means a reboot.
    pub(crate) end: Option<bool>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    verb: String,
    units: Vec<String>,
    now: bool,
    no_block: bool,
    quiet: bool,
    all: bool,
    value: bool,
    no_legend: bool,
    properties: Vec<String>,
    signal: Option<String>,
}

/// Runs one call.
pub(crate) fn run(manager: &Arc<Manager>, args: &[String]) -> Output {
    let call = match parse(args) {
        Ok(call) => call,
        Err(error) => return Output { stderr: format!("{error}\n"), code: 1, ..Output::default() },
    };
    let mut out = Output::default();
    match call.verb.as_str() {
        "daemon-reload" | "daemon-reexec" | "is-system-running" | "preset" | "preset-all" => {
            // Unit files are read at every start, so nothing has to be reloaded.
            if call.verb == "is-system-running" && !call.quiet {
                out.stdout.push_str("running\n");
            }
        }
        "" | "list-units" => list_units(manager, &call, &mut out),
        "list-unit-files" => list_unit_files(manager, &call, &mut out),
        "poweroff" | "halt" | "shutdown" => out.end = Some(false),
        "reboot" | "soft-reboot" | "kexec" => out.end = Some(true),
        "reset-failed" if call.units.is_empty() => {
            manager.known().iter().for_each(|unit| unit.reset_failed())
        }
        "show" if call.units.is_empty() => out.stdout.push_str("Version=252 (drover)\nSystemState=running\n"),
        verb if call.units.is_empty() => {
            out.code = 1;
            let _ = writeln!(
                out.stderr,
                "systemctl {verb}: no unit is specified, or local machines do not support this command."
            );
        }
        _ => {
            for unit in &call.units {
                one(manager, &call, unit, &mut out);
            }
            // is-active and is-failed succeed if they do for any unit.
            if matches!(call.verb.as_str(), "is-active" | "is-failed") && out.stdout_has_success(&call.verb) {
                out.code = 0;
            }
            if call.quiet && call.verb.starts_with("is-") {
                out.stdout.clear();
            }
        }
    }
    out
}

impl Output {
    fn fail(&mut self, code: i32, text: &str) {
        self.code = code;
        self.stderr.push_str(text);
        self.stderr.push('\n');
    }

    fn stdout_has_success(&self, verb: &str) -> bool {
        let good = if verb == "is-active" { "active" } else { "failed" };
        self.stdout.lines().any(|line| line == good)
    }
}

fn parse(args: &[String]) -> Result<Call, String> {
    let mut call = Call::default();
    let mut args = args.iter();
    let mut names = Vec::new();
    while let Some(arg) = args.next() {
        let (flag, inline) = match arg.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_owned())),
            _ => (arg.as_str(), None),
        };
        let mut value =
            || inline.clone().or_else(|| args.next().cloned()).ok_or(format!("{flag} requires a value"));
        match flag {
            "--now" => call.now = true,
            "--no-block" => call.no_block = true,
            "-q" | "--quiet" => call.quiet = true,
            "-a" | "--all" => call.all = true,
            "--value" => call.value = true,
            "--no-legend" => call.no_legend = true,
            "-p" | "--property" => call.properties.extend(value()?.split(',').map(str::to_owned)),
            "-s" | "--signal" => call.signal = Some(value()?),
            "-t" | "--type" | "--state" | "--kill-who" | "--kill-whom" | "-n" | "--lines" | "-o"
            | "--output" | "--job-mode" | "--message" | "--when" => {
                value()?;
            }
            "-f" | "--force" | "--system" | "--no-pager" | "--plain" | "-l" | "--full" | "--no-reload"
            | "--runtime" | "--no-ask-password" | "--no-wall" | "--no-warn" | "--wait"
            | "--show-transaction" => (),
            "--version" => call.verb = "is-system-running".to_owned(),
            other if other.starts_with('-') && other.len() > 1 => {
                match other.strip_prefix("-p").filter(|name| !name.is_empty()) {
                    Some(name) => call.properties.push(name.to_owned()),
                    None => return Err(format!("systemctl: unrecognized option '{other}'")),
                }
            }
            _ => names.push(arg.clone()),
        }
    }
    let mut names = names.into_iter();
    call.verb = names.next().unwrap_or(call.verb);
    call.units = names.map(|name| full_name(&name)).collect();
    Ok(call)
}

fn full_name(name: &str) -> String {
    let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
    let kinds = [".service", ".target", ".socket", ".timer", ".mount", ".path", ".slice", ".scope"];
    if kinds.iter().any(|kind| name.ends_with(kind)) { name.to_owned() } else { format!("{name}.service") }
}

fn one(manager: &Arc<Manager>, call: &Call, name: &str, out: &mut Output) {
    let current = manager.unit(name).status();
    let target = !name.ends_with(".service");
    let running =
        matches!(current.active, ActiveState::Active | ActiveState::Activating | ActiveState::Deactivating);
    match call.verb.as_str() {
        "start" => start(manager, call, name, out),
        "stop" => stop(manager, call, name, out),
        "restart" | "reload-or-restart" | "force-reload" => restart(manager, call, name, out),
        "try-restart" | "condrestart" | "try-reload-or-restart" if !running => (),
        "try-restart" | "condrestart" | "try-reload-or-restart" => restart(manager, call, name, out),
        "reload" => {
            let reload = manager.load(name).map(|service| service.reload);
            match (reload, current.main_pid) {
                (Ok(commands), Some(pid)) if !commands.is_empty() => {
                    // The usual command is `kill -HUP $MAINPID`, so a reload only sends SIGHUP.
                    let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGHUP);
                }
                (Ok(_), _) => out.fail(1, &format!("Job type reload is not applicable for unit {name}.")),
                (Err(error), _) => out.fail(5, &error),
            }
        }
        "enable" | "reenable" => enable(manager, call, name, out),
        "disable" => {
            match manager.disk.disable(name) {
                Ok(lines) => out.stderr.extend(lines),
                Err(error) => out.fail(1, &format!("Failed to disable {name}: {error}.")),
            }
            if call.now {
                stop(manager, call, name, out);
            }
        }
        "mask" | "unmask" => {
            let done = if call.verb == "mask" { manager.disk.mask(name) } else { manager.disk.unmask(name) };
            if let Err(error) = done {
                out.fail(1, &format!("Failed to {} {name}: {error}.", call.verb));
            }
        }
        "is-active" | "is-failed" => {
            let active = if target { ActiveState::Active } else { current.active };
            let _ = writeln!(out.stdout, "{}", active.name());
            out.code = if call.verb == "is-active" { 3 } else { 1 };
        }
        "is-enabled" => match manager.disk.enablement(name) {
            None => {
                out.fail(1, &format!("Failed to get unit file state for {name}: No such file or directory"))
            }
            Some(state) => {
                let _ = writeln!(out.stdout, "{state}");
                if !matches!(state, "enabled" | "static") {
                    out.code = 1;
                }
            }
        },
        "status" => status(manager, name, &current, out),
        "show" => show(manager, call, name, &current, out),
        "cat" => match manager.disk.load(name) {
            Ok(Some(loaded)) => {
                let text = std::fs::read_to_string(&loaded.path).unwrap_or_default();
                let _ = writeln!(out.stdout, "# {}\n{text}", loaded.path.display());
            }
            _ => out.fail(1, &format!("No files found for {name}.")),
        },
        "reset-failed" => manager.unit(name).reset_failed(),
        "kill" => {
            let signal = call.signal.as_deref().unwrap_or("SIGTERM");
            match signal_of(signal) {
                None => out.fail(1, &format!("Failed to parse signal string {signal}.")),
                Some(signal) => {
                    for pid in current.main_pid.iter().flat_map(|pid| processes::of("", Some(*pid))) {
                        let _ = nix::sys::signal::kill(Pid::from_raw(pid), signal);
                    }
                }
            }
        }
        verb => out.fail(1, &format!("Unknown command verb {verb}: local machines do not support it.")),
    }
}

fn signal_of(text: &str) -> Option<Signal> {
    if let Ok(number) = text.parse::<i32>() {
        return Signal::try_from(number).ok();
    }
    let full = if text.starts_with("SIG") { text.to_owned() } else { format!("SIG{text}") };
    Signal::from_str(&full).ok()
}

fn start(manager: &Arc<Manager>, call: &Call, name: &str, out: &mut Output) {
    if let Err(error) = manager.start(name, !call.no_block) {
        let code = if error.contains("not found") { 5 } else { 1 };
        let text = if code == 5 { format!("Failed to start {name}: {error}") } else { error };
        out.fail(code, &text);
    }
}

fn stop(manager: &Arc<Manager>, call: &Call, name: &str, out: &mut Output) {
    let idle = manager.unit(name).status().active == ActiveState::Inactive;
    if idle && name.ends_with(".service") && manager.disk.enablement(name).is_none() {
        out.fail(5, &format!("Failed to stop {name}: Unit {name} not loaded."));
    } else if call.no_block {
        let unit = manager.unit(name);
        std::thread::spawn(move || unit.stop());
    } else {
        manager.stop(name);
    }
}

fn restart(manager: &Arc<Manager>, call: &Call, name: &str, out: &mut Output) {
    if !call.no_block {
        manager.stop(name);
        return start(manager, call, name, out);
    }
    if let Err(error) = manager.load(name) {
        return out.fail(5, &error);
    }
    let (manager, name) = (manager.clone(), name.to_owned());
    std::thread::spawn(move || {
        manager.stop(&name);
        if let Err(error) = manager.start(&name, true) {
            journal::note(&name, &error);
        }
    });
}

fn enable(manager: &Arc<Manager>, call: &Call, name: &str, out: &mut Output) {
    match manager.disk.load(name) {
        Err(error) => return out.fail(1, &format!("Failed to enable unit {name}: {error}.")),
        Ok(None) => return out.fail(1, &format!("Failed to enable unit: Unit file {name} does not exist.")),
        Ok(Some(loaded)) => match manager.disk.enable(name, &loaded) {
            Ok(lines) => out.stderr.extend(lines),
            Err(error) => return out.fail(1, &format!("Failed to enable unit {name}: {error}.")),
        },
    }
    if call.now {
        start(manager, call, name, out);
    }
}

fn status(manager: &Manager, name: &str, current: &UnitStatus, out: &mut Output) {
    let Some(enablement) = manager.disk.enablement(name) else {
        return out.fail(4, &format!("Unit {name} could not be found."));
    };
    let path = manager.disk.load(name).ok().flatten().map(|loaded| loaded.path.display().to_string());
    let description = manager.load(name).map_or_else(|error| error, |service| service.description);
    let dot = if current.active == ActiveState::Failed { "×" } else { "●" };
    let _ = writeln!(out.stdout, "{dot} {name} - {description}");
    let _ = writeln!(out.stdout, "     Loaded: loaded ({}; {enablement})", path.unwrap_or_default());
    let cause =
        if current.result == "success" { String::new() } else { format!(" (Result: {})", current.result) };
    let _ = writeln!(
        out.stdout,
        "     Active: {} ({}){cause} since {}",
        current.active.name(),
        current.sub,
        current.since
    );
    if let Some(pid) = current.main_pid {
        let _ = writeln!(out.stdout, "   Main PID: {pid}");
    }
    let log = std::fs::read_to_string(journal::path(name)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let _ = writeln!(out.stdout);
    for line in &lines[lines.len().saturating_sub(10)..] {
        let _ = writeln!(out.stdout, "{line}");
    }
    if current.active != ActiveState::Active && current.active != ActiveState::Activating {
        out.code = 3;
    }
}

fn show(manager: &Manager, call: &Call, name: &str, current: &UnitStatus, out: &mut Output) {
    let enablement = manager.disk.enablement(name);
    let loaded = manager.disk.load(name).ok().flatten();
    let description =
        manager.load(name).map(|service| service.description).unwrap_or_else(|_| name.to_owned());
    let load = if enablement == Some("masked") {
        "masked"
    } else if loaded.is_some() || !name.ends_with(".service") {
        "loaded"
    } else {
        "not-found"
    };
    let exit = current.exit.map_or(0, super::reaper::Ended::code).to_string();
    let all = [
        ("Id", name.to_owned()),
        ("Names", name.to_owned()),
        ("Description", description),
        ("LoadState", load.to_owned()),
        ("ActiveState", current.active.name().to_owned()),
        ("SubState", current.sub.to_owned()),
        ("UnitFileState", enablement.unwrap_or_default().to_owned()),
        ("FragmentPath", loaded.map(|loaded| loaded.path.display().to_string()).unwrap_or_default()),
        ("MainPID", current.main_pid.unwrap_or(0).to_string()),
        ("ExecMainStatus", exit),
        ("Result", current.result.to_owned()),
        ("NRestarts", current.restarts.to_string()),
        ("StateChangeTimestamp", current.since.to_string()),
        ("NeedDaemonReload", "no".to_owned()),
    ];
    for (key, value) in all {
        if call.properties.is_empty() || call.properties.iter().any(|wanted| wanted == key) {
            let _ = if call.value {
                writeln!(out.stdout, "{value}")
            } else {
                writeln!(out.stdout, "{key}={value}")
            };
        }
    }
}

fn list_units(manager: &Manager, call: &Call, out: &mut Output) {
    if !call.no_legend {
        let _ =
            writeln!(out.stdout, "{:<40} {:<8} {:<12} {:<12} DESCRIPTION", "UNIT", "LOAD", "ACTIVE", "SUB");
    }
    for unit in manager.known() {
        let current = unit.status();
        if (current.active == ActiveState::Inactive && !call.all)
            || (!call.units.is_empty() && !call.units.contains(&unit.name))
        {
            continue;
        }
        let description = manager.load(&unit.name).map(|service| service.description).unwrap_or_default();
        let line = format!(
            "{:<40} loaded   {:<12} {:<12} {description}",
            unit.name,
            current.active.name(),
            current.sub
        );
        let _ = writeln!(out.stdout, "{}", line.trim_end());
    }
}

fn list_unit_files(manager: &Manager, call: &Call, out: &mut Output) {
    if !call.no_legend {
        let _ = writeln!(out.stdout, "{:<40} STATE", "UNIT FILE");
    }
    let mut found = false;
    for name in manager.disk.all() {
        if call.units.is_empty() || call.units.contains(&name) {
            found = true;
            let _ = writeln!(out.stdout, "{name:<40} {}", manager.disk.enablement(&name).unwrap_or_default());
        }
    }
    if !found && !call.units.is_empty() {
        out.code = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Result<Call, String> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_of_installers_are_parsed() {
        let enable = call("enable --now k3s").unwrap();
        assert_eq!(
            (enable.verb.as_str(), enable.units, enable.now),
            ("enable", vec!["k3s.service".into()], true)
        );
        let show = call("show -p ActiveState --property=SubState,Result --value a.service b.target").unwrap();
        assert_eq!(show.properties, ["ActiveState", "SubState", "Result"]);
        assert_eq!((show.units, show.value), (vec!["a.service".into(), "b.target".into()], true));
        let quiet = call("is-active --quiet x").unwrap();
        assert!(quiet.quiet && !quiet.no_block);
        assert!(call("restart --no-block rke2-server.service").unwrap().no_block);
        assert!(call("start --frobnicate x").unwrap_err().contains("--frobnicate"));
        assert!(call("show -p").is_err());
    }

    #[test]
    fn signals_by_name_and_number() {
        assert_eq!(signal_of("HUP"), Some(Signal::SIGHUP));
        assert_eq!(signal_of("SIGKILL"), Some(Signal::SIGKILL));
        assert_eq!((signal_of("9"), signal_of("no")), (Some(Signal::SIGKILL), None));
    }
}
