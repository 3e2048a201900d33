//! Simulated machines with real agents, and fleets of clusters that consist of them.
//!
//! A machine is the real agent library on an in-memory host, with its tunnel and its registration. Its plans install
//! the simulated K3s with its own API, certificates, join tokens and Nodes. Only these parts are replaced: the Job
//! runner with its driver ([`jobs`]), the install script ([`bootstrap`]), and the installer's `run.sh` with systemd
//! (`k3s`). A management plane cannot distinguish these machines from real ones.
//!
//! [`fleet`] fills a management plane with ordinary clusters of such machines. All machines of a process share one
//! runtime and need no threads of their own. Start reading at [`datacenter`].

pub mod bootstrap;
pub mod churn;
pub mod clusters;
pub mod datacenter;
pub mod driver;
pub mod fleet;
pub mod jobs;
mod k3s;
pub mod machine;
pub mod network;
pub mod progress;
pub mod settled;

pub use bootstrap::Registration;
pub use datacenter::Datacenter;
pub use fleet::{Fleet, FleetOptions};
pub use machine::{Disk, Machine};
pub use network::Network;
