//! Local machines: real Linux hosts on this host, for root and for an ordinary user in one and the same layout.
//!
//! [`Local`] is the client: it talks to the holder process (`holder`), which owns the namespaces and the machines; each
//! machine's process 1 is `init`, and the programs it has instead of systemd's are `shim`. All three run from one
//! executable, whose hidden subcommands `machine-holder`, `machine-init` and `machine-shim` call [`holder_main`],
//! [`init_main`] and [`shim_main`] before anything starts a thread.

mod cgroup;
mod client;
mod driver;
mod error;
mod exec;
mod holder;
mod init;
mod layout;
mod namespace;
mod netlink;
mod network;
mod privileges;
mod protocol;
mod records;
mod relay;
mod shim;
mod sys;
mod syscalls;
mod validate;
mod wire;

pub use self::{
    client::{HolderWatch, Local},
    driver::LocalDriver,
    error::{Error, ONLY_ROOT, Result},
    exec::Terminal,
    holder::holder_main,
    init::init_main,
    protocol::{CreateOptions, HolderInfo, InstallState, MachineInfo, PowerState, ReadOnlyMount, TtySize},
    shim::shim_main,
    sys::{enough_open_files, raise_open_files},
};
