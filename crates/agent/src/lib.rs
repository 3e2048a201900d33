//! The node agent.
//!
//! It watches one Secret, the machine plan, makes the machine look like that plan, and reports in the same Secret. It
//! never gives up: a lost API server, a failed instruction or a full disk is something to wait for and to tell.
//!
//! It must not know who made the plan, nor which Kubernetes distribution the plan installs.
//!
//! Start with [`sentinel`], which puts the parts together; then [`remote`] (watch, decide, report), [`apply`] (files
//! and instructions), [`image`], [`probe`], [`local`], [`upgrade`] and, on control-plane nodes, [`cluster_agent`]. All of them touch the machine only through [`host::Host`].

pub mod alone;
pub mod apply;
pub mod cli;
pub mod cluster_agent;
pub mod cluster_ca;
pub mod config;
pub mod host;
pub mod http;
pub mod image;
pub mod kube_api;
pub mod kubeconfig;
pub mod local;
pub mod log;
pub mod platform;
pub mod probe;
pub mod redact;
pub mod remote;
pub mod sentinel;
pub mod service;
pub mod span;
pub mod status;
pub mod uninstall;
pub mod unix_date;
pub mod upgrade;

/// The install script, served by the management plane and embedded in bootstrap data.
pub const INSTALL_SCRIPT: &str = include_str!("../assets/system-agent-install.sh");
