//! What differs between the operating systems that a plan can be made for, apart from how the machine is touched
//! (`host`). Both are always compiled, so that what can be tested of Windows is tested everywhere.

/// One operating system, as the original agent treats it.
pub trait Platform: Send + Sync {
    /// Where the configuration lies unless `CATTLE_AGENT_CONFIG` says otherwise.
    fn config_path(&self) -> &'static str;
    /// Where the agent keeps its things unless the configuration says otherwise.
    fn var_dir(&self) -> &'static str;
    /// Name of the service that runs the agent.
    fn service(&self) -> &'static str;
    /// Whether mode and owner of the agent's own files are checked. Elsewhere an access list protects them, which the
    /// installer sets.
    fn checks_modes(&self) -> bool;
    /// Whether installer and agent wait for each other.
    fn has_interlock(&self) -> bool;
    /// Program and arguments of an instruction that names no command, in its folder.
    fn entry(&self, dir: &str) -> (String, Vec<String>);
    /// The only folder of an image that is unpacked, if it is not all of it; its content comes to the top.
    fn image_root(&self) -> Option<&'static str>;
}

/// Linux.
pub struct Linux;

impl Platform for Linux {
    fn config_path(&self) -> &'static str {
        "/etc/rancher/agent/config.yaml"
    }

    fn var_dir(&self) -> &'static str {
        "/var/lib/rancher/agent"
    }

    fn service(&self) -> &'static str {
        "rancher-system-agent.service"
    }

    fn checks_modes(&self) -> bool {
        true
    }

    fn has_interlock(&self) -> bool {
        true
    }

    fn entry(&self, dir: &str) -> (String, Vec<String>) {
        (format!("{dir}/run.sh"), Vec::new())
    }

    fn image_root(&self) -> Option<&'static str> {
        None
    }
}

/// Windows, for worker nodes. The original lives inside of the service `rancher-wins`.
pub struct Windows;

impl Platform for Windows {
    fn config_path(&self) -> &'static str {
        "C:/etc/rancher/wins/config.yaml"
    }

    fn var_dir(&self) -> &'static str {
        "C:/var/lib/rancher/agent"
    }

    fn service(&self) -> &'static str {
        "rancher-wins"
    }

    fn checks_modes(&self) -> bool {
        false
    }

    fn has_interlock(&self) -> bool {
        false
    }

    fn entry(&self, dir: &str) -> (String, Vec<String>) {
        ("powershell.exe".into(), vec!["-File".into(), format!("{dir}/run.ps1")])
    }

    fn image_root(&self) -> Option<&'static str> {
        Some("Files/bin")
    }
}

/// The one this agent was built for.
#[cfg(not(windows))]
pub const CURRENT: &dyn Platform = &Linux;
/// The one this agent was built for.
#[cfg(windows)]
pub const CURRENT: &dyn Platform = &Windows;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_a_command_runs_its_script() {
        assert_eq!(Linux.entry("/w/x_0"), ("/w/x_0/run.sh".into(), vec![]));
        let (program, args) = Windows.entry("C:/w/x_0");
        assert_eq!(
            (program.as_str(), args),
            ("powershell.exe", vec!["-File".into(), "C:/w/x_0/run.ps1".into()])
        );
    }
}
