//! Process 1 of a machine.
//!
//! Sets up the root file system and the network, then supervises units, reaps processes, and serves two sockets:
//! `control.sock` for the holder and clients outside (exec, power-off) and `/run/drover/init.sock` for the `systemctl`
//! shim inside.

mod command;
mod exec;
pub(crate) mod journal;
mod kernel;
mod manager;
mod processes;
mod reaper;
mod rootfs;
mod runner;
mod service;
mod systemctl;
mod unit;
mod unitfile;
mod units;

use std::{
    os::unix::net::{UnixListener, UnixStream},
    sync::Arc,
};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::signal::{SigSet, Signal},
    unistd::Pid,
};

use self::manager::Manager;
use crate::{
    error::{At, Result},
    holder::log,
    network, privileges,
    protocol::{BootConfig, Booted, InitReply, InitRequest},
    sys, wire,
};

/// The socket of process 1 for the shims.
pub(crate) const SOCKET: &str = "/run/drover/init.sock";

/// Entry point of `drover machine-init`. The holder starts it as process 1 of new namespaces, with the holder's socket
/// as descriptor 3 and the control socket as descriptor 4. It returns only if the boot fails.
pub fn init_main(_args: &[String]) -> i32 {
    if std::process::id() != 1 {
        eprintln!("machine-init must be started by the holder of local machines, as process 1");
        return 1;
    }
    sys::restore_default_signals();
    sys::set_process_name(c"drover");
    let holder = UnixStream::from(sys::inherited(3));
    let control = UnixListener::from(sys::inherited(4));
    // Without a configuration, the holder has ended.
    let Ok(Some((config, _))) = wire::recv::<BootConfig>(&holder) else { return 1 };
    let inside = match boot(&config) {
        Ok(inside) => inside,
        Err(error) => {
            eprintln!("{}", error.chain());
            let _ = wire::send(&holder, &Booted::No(error.chain()), &[]);
            return 1;
        }
    };
    let manager = Manager::new(&config.hostname, config.only_root);
    power_button(&manager);
    for listener in [control, inside] {
        let manager = manager.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let manager = manager.clone();
                std::thread::spawn(move || serve(&manager, &stream));
            }
        });
    }
    if wire::send(&holder, &Booted::Yes, &[]).is_err() {
        return 1;
    }
    log(&format!("machine {} has booted", config.name));
    manager.boot();
    manager.reaper.run()
}

fn boot(config: &BootConfig) -> Result<UnixListener> {
    limit_processors(config);
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    nix::unistd::sethostname(&config.hostname).at("set host name", &config.hostname)?;
    network::allow_ping(config.only_root);
    rootfs::enter(config)?;
    network::bring_up_machine(config.ip, config.prefix, config.gateway).at("bring up", "eth0")?;
    let inside = wire::listen(SOCKET.as_ref()).at("listen on", SOCKET)?;
    privileges::drop_privileges().at("drop", "privileges")?;
    Ok(inside)
}

/// Limits the processors of all processes of the machine. Machines start with different processors, selected by
/// address.
fn limit_processors(config: &BootConfig) {
    let this = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else { return };
    let allowed: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect();
    let wanted = config.cpus as usize;
    if wanted == 0 || wanted >= allowed.len() {
        return;
    }
    let mut chosen = CpuSet::new();
    for cpu in allowed.iter().cycle().skip(usize::from(config.ip.octets()[3]) % allowed.len()).take(wanted) {
        let _ = chosen.set(*cpu);
    }
    if let Err(errno) = sched_setaffinity(this, &chosen) {
        log(&format!("failed to limit the machine to {wanted} processors: {errno}"));
    }
}

/// SIGTERM and SIGPWR from the host power the machine off; SIGINT reboots it.
fn power_button(manager: &Arc<Manager>) {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGPWR] {
        signals.add(signal);
    }
    // Blocked before the first thread is started, so that all threads inherit it and only the thread below receives
    // them.
    if signals.thread_block().is_err() {
        return;
    }
    let manager = manager.clone();
    std::thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            manager.end(signal == Signal::SIGINT);
        }
    });
}

fn serve(manager: &Arc<Manager>, stream: &UnixStream) {
    let Ok(Some((request, fds))) = wire::recv::<InitRequest>(stream) else { return };
    let _ = match request {
        InitRequest::Exec { argv, env, tty } => exec::exec(manager, stream, &argv, &env, tty, fds),
        InitRequest::Systemctl { args } => {
            let out = systemctl::run(manager, &args);
            let end = out.end;
            let reply = InitReply::Output { stdout: out.stdout, stderr: out.stderr, code: out.code };
            let sent = wire::send(stream, &reply, &[]);
            if let Some(reboot) = end {
                manager.end(reboot);
            }
            sent
        }
        InitRequest::PowerOff => manager.end(false),
        InitRequest::Reboot => manager.end(true),
    };
}
