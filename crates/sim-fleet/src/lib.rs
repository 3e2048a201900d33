//! Simulated machines with real agents, and fleets of clusters made of them.
//!
//! A machine is the real agent library on a host in memory, with its tunnel and its registration; what a plan installs is
//! the simulated K3s, with its own API, certificates, join tokens and Nodes. Played are only the Job runner with its driver
//! ([`jobs`]), the install script ([`bootstrap`]), and the installer's `run.sh` with systemd (`k3s`). A management plane
//! cannot tell these machines from real ones.
//!
//! [`fleet`] fills a management plane with ordinary clusters of such machines. All machines of a process share one runtime:
//! nothing here has a thread of its own. Start reading at [`datacenter`].

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

pub use bootstrap::Order;
pub use datacenter::Datacenter;
pub use fleet::{Fleet, FleetOptions};
pub use machine::{Disk, Machine};
pub use network::Network;
