//! Starts process 1 of a machine from its disk.

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

use crate::{
    cgroup::{self, Group},
    error::{At, Error, Result},
    layout::Layout,
    netlink::{Netlink, index},
    network::{BRIDGE, Network},
    protocol::{BootConfig, Booted, Record},
    sys, wire,
};

/// A boot only mounts and configures. If it takes longer than this, it hangs.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// A request to the main thread to start a process 1.
pub(super) struct SpawnRequest {
    exe: PathBuf,
    fds: Vec<OwnedFd>,
    reply: Sender<io::Result<i32>>,
}

impl SpawnRequest {
    /// Must be called on a thread that lives as long as the holder.
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

/// A machine that is booting.
pub(super) struct Booting {
    pub(super) pid: i32,
    channel: UnixStream,
    config: BootConfig,
    link: String,
    bridge: u32,
}

/// Starts process 1. It waits for its configuration, and exits if the holder ends before sending it.
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
    let (channel_here, channel_there) = UnixStream::pair().at("create", "a socket pair")?;
    channel_here.set_read_timeout(Some(BOOT_TIMEOUT)).at("configure", "a socket")?;
    // A pipe, not the file itself: through /proc a machine could change an open file, and this file belongs to the
    // host.
    let (output, writer) = io::pipe().at("create", "a pipe")?;
    let copy = writer.try_clone().at("duplicate", "a pipe")?;
    std::thread::spawn(move || copy_to_log(output, &console));
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
        super::log(&format!("machine {} has no control group: the host does not allow one", record.name));
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

    /// Connects the machine to the network, sends its configuration and waits until it has booted.
    pub(super) fn finish(self) -> Result<()> {
        let namespace = Path::new("/proc").join(self.pid.to_string()).join("ns/net");
        let namespace = File::open(&namespace).at("open", &namespace)?;
        let plugged = Netlink::open().and_then(|mut netlink| {
            // The link of an earlier boot is removed with its network namespace, which the kernel does asynchronously.
            netlink.delete_link(&self.link)?;
            netlink.add_veth(&self.link, self.bridge, "eth0", namespace.as_fd())
        });
        plugged.at("connect link", &self.link)?;
        let lost = |source| Error::Connection { peer: "the booting machine", source };
        wire::send(&self.channel, &self.config, &[]).map_err(lost)?;
        match wire::recv::<Booted>(&self.channel).map_err(lost)? {
            Some((Booted::Yes, _)) => Ok(()),
            Some((Booted::No(why), _)) => {
                Err(Error::Failed(format!("machine {} failed to boot: {why}", self.config.name)))
            }
            None => Err(Error::Failed(format!("machine {} exited while booting", self.config.name))),
        }
    }
}

/// Writes the output of process 1 to its log until it exits. A full disk must not stop the machine.
fn copy_to_log(mut output: io::PipeReader, mut console: &File) {
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

/// Removes the bridge's side of a machine's veth pair, if it still exists.
pub(super) fn remove_link(network: &Network, record: &Record) {
    let name = network.link_name(record.ip);
    if let Err(error) = Netlink::open().and_then(|mut netlink| netlink.delete_link(&name)) {
        super::log(&format!("failed to remove link {name}: {error}"));
    }
}
