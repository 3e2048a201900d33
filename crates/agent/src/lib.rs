//! The node agent.
//!
//! It watches one Secret with the machine plan, applies the plan to the machine, and reports in the same Secret. It
//! does not exit because of an error: it waits and retries if the API server is unreachable, an instruction fails or
//! the disk is full, and reports the problem.
//!
//! It must not know who wrote the plan, nor which Kubernetes distribution the plan installs.
//!
//! Start with [`sentinel`], which starts all parts; then [`remote`] (watch, decide, report), [`apply`] (files and
//! instructions), [`image`], [`probe`], [`local`], [`upgrade`] and, on control plane nodes, [`cluster_agent`]. All of
//! them access the machine only through [`host::Host`].

pub mod apply;
pub mod cli;
pub mod cluster_agent;
pub mod cluster_ca;
pub mod config;
pub mod duration;
pub mod host;
pub mod http;
pub mod image;
pub mod kube_api;
pub mod kubeconfig;
pub mod local;
pub mod lock;
pub mod log;
pub mod platform;
pub mod probe;
pub mod redact;
pub mod remote;
pub mod sentinel;
pub mod service;
pub mod status;
pub mod uninstall;
pub mod unix_date;
pub mod upgrade;

/// The install script, which the management plane serves and embeds in bootstrap data.
pub const INSTALL_SCRIPT: &str = include_str!("../assets/system-agent-install.sh");
