//! From a disk to a running process 1.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::mpsc::{Sender, channel},
    time::Duration,
};

use super::super::{
    cgroup::{self, Group},
    error::{At, Error, Result},
    layout::Layout,
    netlink::{Netlink, index},
    network::{BRIDGE, Network},
    protocol::{BootConfig, Booted, Record},
    sys, wire,
};

/// A boot only mounts and configures; longer than this means that something hangs.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks the main thread for a process 1.
pub(super) struct SpawnRequest {
    exe: PathBuf,
    fds: Vec<OwnedFd>,
    reply: Sender<io::Result<i32>>,
}

impl SpawnRequest {
    /// Must run on a thread that lives as long as the holder.
    pub(super) fn run(self) {
        let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
        let env = [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
            "LANG=C.UTF-8",
            "container=drover",
        ];
        let _ = self.reply.send(sys::detached_read_only(&self.exe).and_then(|exe| {
            sys::spawn_in_new_namespaces(exe.as_fd(), &["drover", "machine-init"], &env, &fds)
        }));
    }
}

/// What the holder keeps of a booting machine.
pub(super) struct Booting {
    pub(super) pid: i32,
    channel: UnixStream,
    config: BootConfig,
    link: String,
    bridge: u32,
}

/// Starts process 1. It waits for its configuration, and ends if the holder ends before sending it.
pub(super) fn spawn(
    layout: &Layout,
    network: &Network,
    only_root: bool,
    record: &Record,
    spawner: &Sender<SpawnRequest>,
) -> Result<Booting> {
    let machine = layout.machine(&record.name);
    let bridge = index(BRIDGE).at("find", BRIDGE)?;
    let console =
        File::options().create(true).append(true).open(machine.console()).at("open", machine.console())?;
    let null = File::open("/dev/null").at("open", "/dev/null")?;
    let control = wire::listen(&machine.control()).at("listen on", machine.control())?;
    let (channel_here, channel_there) = UnixStream::pair().at("make", "a socket pair")?;
    channel_here.set_read_timeout(Some(BOOT_TIMEOUT)).at("configure", "a socket")?;
    // Not the file itself: through /proc a machine could change what it has open, and this file is the host's.
    let (output, writer) = io::pipe().at("make", "a pipe")?;
    let copy = writer.try_clone().at("duplicate", "a pipe")?;
    std::thread::spawn(move || keep(output, &console));
    let fds = vec![null.into(), copy.into(), writer.into(), channel_there.into(), control.into()];
    let (reply, outcome) = channel();
    let gone = |_| Error::Failed("the holder is ending".to_owned());
    spawner.send(SpawnRequest { exe: layout.exe(), fds, reply }).map_err(|_| gone(()))?;
    let pid = outcome.recv().map_err(|_| gone(()))?.map_err(|error| {
        Error::Unsupported(format!(
            "cannot make the namespaces of machine {}: {error}; the limits in /proc/sys/user/max_*_namespaces and the \
             number of processes allowed to this user must leave room for it",
            record.name
        ))
    })?;
    let group = cgroup::confine(&machine.cgroups(), &record.machine_id, pid);
    if group.is_none() {
        super::say(&format!("machine {} has no control group of its own: the host gives none", record.name));
    }
    Ok(Booting {
        pid,
        channel: channel_here,
        config: BootConfig {
            name: record.name.clone(),
            hostname: record.hostname.clone(),
            disk: machine.disk(),
            exe: layout.exe(),
            ip: record.ip,
            prefix: network.prefix,
            gateway: network.gateway,
            only_root,
            cpus: record.options.cpus,
            mounts: record.options.mounts.clone(),
            group,
        },
        link: network.link_name(record.ip),
        bridge,
    })
}

impl Booting {
    /// The control group that the machine runs in.
    pub(super) fn group(&self) -> Option<&Group> {
        self.config.group.as_ref()
    }

    /// Plugs the machine in, tells it who it is and waits until it has booted.
    pub(super) fn finish(self) -> Result<()> {
        let namespace = Path::new("/proc").join(self.pid.to_string()).join("ns/net");
        let namespace = File::open(&namespace).at("open", &namespace)?;
        let plugged = Netlink::open().and_then(|mut netlink| {
            // The cable of an earlier boot goes with its network namespace, which the kernel removes in its own time.
            netlink.delete_link(&self.link)?;
            netlink.add_veth(&self.link, self.bridge, "eth0", namespace.as_fd())
        });
        plugged.at("plug in", &self.link)?;
        let lost = |source| Error::Connection { peer: "the booting machine", source };
        wire::send(&self.channel, &self.config, &[]).map_err(lost)?;
        match wire::recv::<Booted>(&self.channel).map_err(lost)? {
            Some((Booted::Yes, _)) => Ok(()),
            Some((Booted::No(why), _)) => {
                Err(Error::Failed(format!("machine {} did not boot: {why}", self.config.name)))
            }
            None => Err(Error::Failed(format!("machine {} ended while it booted", self.config.name))),
        }
    }
}

/// Writes what process 1 says into its log until it ends. A disk that is full must not stop the machine.
fn keep(mut output: io::PipeReader, mut console: &File) {
    let mut buffer = [0u8; 4096];
    loop {
        match output.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => drop(console.write_all(&buffer[..length])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(_) => return,
        }
    }
}

/// Removes the bridge's side of a machine's cable, if it is still there.
pub(super) fn unplug(network: &Network, record: &Record) {
    let name = network.link_name(record.ip);
    if let Err(error) = Netlink::open().and_then(|mut netlink| netlink.delete_link(&name)) {
        super::say(&format!("cannot remove link {name}: {error}"));
    }
}
