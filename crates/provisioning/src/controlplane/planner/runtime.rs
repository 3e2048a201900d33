//! The distribution a cluster runs, told from its version.

/// Which distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    K3s,
    Rke2,
}

impl Runtime {
    /// K3s iff the version says so.
    pub fn of_version(kubernetes_version: &str) -> Self {
        if kubernetes_version.contains("k3s") { Self::K3s } else { Self::Rke2 }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::K3s => "k3s",
            Self::Rke2 => "rke2",
        }
    }

    /// As environment variables spell it.
    pub fn upper(self) -> &'static str {
        match self {
            Self::K3s => "K3S",
            Self::Rke2 => "RKE2",
        }
    }

    pub fn supervisor_port(self) -> u16 {
        match self {
            Self::K3s => 6443,
            Self::Rke2 => 9345,
        }
    }

    /// The unit that runs on a machine with these roles.
    pub fn unit(self, server: bool) -> &'static str {
        match (self, server) {
            (Self::K3s, true) => "k3s",
            (Self::K3s, false) => "k3s-agent",
            (Self::Rke2, true) => "rke2-server",
            (Self::Rke2, false) => "rke2-agent",
        }
    }

    pub fn default_data_dir(self) -> String {
        format!("/var/lib/rancher/{}", self.name())
    }

    pub fn config_file(self) -> String {
        format!("/etc/rancher/{}/config.yaml.d/50-rancher.yaml", self.name())
    }
}
