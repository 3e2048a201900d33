//! Local machines: real Linux hosts in namespaces of this host, with the same layout for root and for other users.
//!
//! This crate is frozen. It includes a miniature systemd, which is as complete as installers of Kubernetes
//! distributions and the agent need it. It gets fixes but no new features: a machine that needs more belongs on a
//! virtual machine or in a cloud.
//!
//! [`Local`] is the client. It talks to the holder process ([`holder`]), which owns the namespaces and the machines.
//! Process 1 of each machine is [`init`], and [`shim`] replaces systemd's programs. All three run from one executable,
//! whose hidden subcommands `machine-holder`, `machine-init` and `machine-shim` call [`holder_main`], [`init_main`] and
//! [`shim_main`] before anything starts a thread. [`LocalDriver`] implements the trait of all drivers.
//!
//! It must not depend on Kubernetes objects, clusters or plans, nor assume the name of its own executable: the caller
//! of [`Local::open`] says which executable has the entry points.
//!
//! Start reading at [`Local`], then [`holder`], [`init`], [`shim`].

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
