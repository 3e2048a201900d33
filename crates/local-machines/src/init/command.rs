//! Starts one program of a unit: environment, user, limits, output.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, mpsc::Sender},
};

use super::{
    journal,
    manager::Manager,
    service::{Exec, Kind, Output, Service},
    unit::Event,
    unitfile::{environment_file, expand},
};
use crate::{error::ONLY_ROOT, sys};

/// The PATH of all programs in a machine.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(crate) struct Launch<'a> {
    pub(crate) unit: &'a str,
    pub(crate) service: &'a Service,
    pub(crate) exec: &'a Exec,
    pub(crate) invocation: &'a str,
    pub(crate) main: Option<i32>,
    pub(crate) inbox: Option<Sender<Event>>,
}

/// Starts the program. Its exit is sent to the unit's inbox.
pub(crate) fn launch(manager: &Arc<Manager>, what: Launch<'_>) -> io::Result<i32> {
    let service = what.service;
    let env = environment(&what)?;
    let words = if what.exec.literal { what.exec.words.clone() } else { expand(&what.exec.words, &env) };
    let program = words
        .first()
        .ok_or_else(|| io::Error::other("the command is empty after the expansion of variables"))?;
    let mut command = Command::new(program);
    command.args(&words[1..]).env_clear().envs(&env).stdin(Stdio::null());
    if let Some((directory, may_be_missing)) = &service.working_directory {
        let directory = if directory == Path::new("~") { Path::new("/root") } else { directory };
        if directory.is_dir() || !may_be_missing {
            command.current_dir(directory);
        }
    } else {
        command.current_dir("/");
    }
    become_user(&mut command, service, manager.only_root)?;
    sys::new_session(&mut command, false);
    if let Some(limit) = service.open_files {
        sys::limit_open_files(&mut command, limit);
    }
    let pipe = redirect(&mut command, &service.output)?;
    let inbox = what.inbox;
    // The pid is not known before the program runs, and it may exit before the pid is set: the callback waits for it.
    let pid = {
        let slot = Arc::new(std::sync::OnceLock::new());
        let mine = slot.clone();
        let pid = manager.reaper.spawn(&mut command, move |ended| {
            if let Some(inbox) = inbox {
                let _ = inbox.send(Event::Ended(*mine.wait(), ended));
            }
        })?;
        let _ = slot.set(pid);
        pid
    };
    // Close the writing ends of the pipe in this process, otherwise the log reader never sees the end.
    drop(command);
    if let Some(pipe) = pipe {
        let ident = Path::new(program).file_name().map(|name| name.to_string_lossy().into_owned());
        let (unit, ident) = (what.unit.to_owned(), ident.unwrap_or_default());
        std::thread::spawn(move || journal::copy(&unit, &ident, pid, pipe));
    }
    Ok(pid)
}

fn environment(what: &Launch<'_>) -> io::Result<BTreeMap<String, String>> {
    let service = what.service;
    let mut env: BTreeMap<String, String> = [
        ("PATH", PATH),
        ("LANG", "C.UTF-8"),
        ("HOME", "/root"),
        ("USER", "root"),
        ("LOGNAME", "root"),
        ("SHELL", "/bin/sh"),
        ("INVOCATION_ID", what.invocation),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    if service.kind == Kind::Notify {
        env.insert("NOTIFY_SOCKET".to_owned(), Manager::notify_socket(what.unit).display().to_string());
    }
    if let Some(main) = what.main {
        env.insert("MAINPID".to_owned(), main.to_string());
    }
    env.extend(service.environment.iter().cloned());
    for (path, may_be_missing) in &service.environment_files {
        match fs::read_to_string(path) {
            Ok(text) => env.extend(environment_file(&text)),
            Err(_) if *may_be_missing => (),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
    Ok(env)
}

fn become_user(command: &mut Command, service: &Service, only_root: bool) -> io::Result<()> {
    let root = |name: &Option<String>| name.as_deref().is_none_or(|name| name == "root" || name == "0");
    if root(&service.user) && root(&service.group) {
        return Ok(());
    }
    if only_root {
        return Err(io::Error::other(ONLY_ROOT));
    }
    if let Some(user) = &service.user {
        let (uid, gid) = lookup("/etc/passwd", user)?;
        command.gid(gid.unwrap_or(uid)).uid(uid);
    }
    if let Some(group) = &service.group {
        command.gid(lookup("/etc/group", group)?.0);
    }
    Ok(())
}

/// Returns the id of a user or group, and a user's primary group. Reads the file because a static executable has no
/// name service.
fn lookup(file: &str, name: &str) -> io::Result<(u32, Option<u32>)> {
    if let Ok(number) = name.parse() {
        return Ok((number, None));
    }
    fs::read_to_string(file)?
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.first() == Some(&name))
        .and_then(|fields| {
            Some((fields.get(2)?.parse().ok()?, fields.get(3).and_then(|gid| gid.parse().ok())))
        })
        .ok_or_else(|| io::Error::other(format!("{name} is not in {file}")))
}

fn redirect(command: &mut Command, output: &Output) -> io::Result<Option<io::PipeReader>> {
    let file = match output {
        Output::Journal => {
            let (reader, writer) = io::pipe()?;
            command.stdout(writer.try_clone()?).stderr(writer);
            return Ok(Some(reader));
        }
        Output::Null => File::options().write(true).open("/dev/null")?,
        Output::Append(path) => File::options().create(true).append(true).open(path)?,
        Output::Truncate(path) => File::create(path)?,
    };
    command.stdout(file.try_clone()?).stderr(file);
    Ok(None)
}
