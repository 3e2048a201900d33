//! What differs between the operating systems that a plan can be made for, apart from how the machine is touched
//! (`host`). Both are always compiled, so that what can be tested of Windows is tested everywhere.

/// One operating system, as the original agent treats it.
pub trait Platform: Send + Sync {
    /// Where the configuration lies unless `CATTLE_AGENT_CONFIG` says otherwise.
    fn config_path(&self) -> &'static str;
    /// Where in that file the agent's configuration is, if the file is another program's.
    fn section(&self) -> Option<&'static Section>;
    /// Where the agent keeps its things unless the configuration says otherwise.
    fn var_dir(&self) -> &'static str;
    /// Name of the service that runs the agent.
    fn service(&self) -> &'static str;
    /// How many threads may block at the same time.
    fn blocking_threads(&self) -> usize;
    /// Whether a node can be of a control plane, and so carry the tunnel to its cluster.
    fn has_control_planes(&self) -> bool;
    /// Whether there is an installer of the agent, whose work `uninstall` undoes.
    fn has_installer(&self) -> bool;
    /// Whether mode and owner of the agent's own files are checked. Elsewhere an access list protects them, which the
    /// installer sets.
    fn checks_modes(&self) -> bool;
    /// Whether installer and agent wait for each other.
    fn has_interlock(&self) -> bool;
    /// Program and arguments of an instruction that names no command, in its folder.
    fn entry(&self, dir: &str) -> (String, Vec<String>);
    /// What the file of an instruction's script is called.
    fn script_name(&self) -> &'static str;
    /// Program and arguments of an instruction that is such a script.
    fn script(&self, path: String, text: &str) -> (String, Vec<String>);
    /// The PATH of an instruction: the agent's own, out of its environment, and then the instruction's folder.
    fn search_path(&self, env: &[(String, String)], dir: &str) -> String;
    /// The only folder of an image that is unpacked, if it is not all of it; its content comes to the top.
    fn image_root(&self) -> Option<&'static str>;
}

/// A part of a configuration file that is not only the agent's, and what the rest of it says about the agent. All are
/// keys at the top of the file, which is YAML whatever its name.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    /// Holds the agent's own configuration.
    pub name: &'static str,
    /// True: trust only the authority in the connection file, as `CATTLE_AGENT_STRICT_VERIFY` says elsewhere.
    pub strict: &'static str,
    /// True: log more, unless `CATTLE_LOGLEVEL` says how much.
    pub debug: &'static str,
}

/// Linux.
pub struct Linux;

impl Platform for Linux {
    fn config_path(&self) -> &'static str {
        "/etc/rancher/agent/config.yaml"
    }

    fn section(&self) -> Option<&'static Section> {
        None
    }

    fn var_dir(&self) -> &'static str {
        "/var/lib/rancher/agent"
    }

    fn service(&self) -> &'static str {
        "rancher-system-agent.service"
    }

    fn blocking_threads(&self) -> usize {
        2
    }

    fn has_control_planes(&self) -> bool {
        true
    }

    fn has_installer(&self) -> bool {
        true
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

    fn script_name(&self) -> &'static str {
        "drover-script.sh"
    }

    fn script(&self, path: String, text: &str) -> (String, Vec<String>) {
        if text.starts_with("#!") { (path, Vec::new()) } else { ("sh".into(), vec![path]) }
    }

    fn search_path(&self, env: &[(String, String)], dir: &str) -> String {
        let own = env.iter().rev().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
        format!("{own}:{dir}")
    }

    fn image_root(&self) -> Option<&'static str> {
        None
    }
}

/// Windows, for worker nodes. The original lives inside of the service `rancher-wins`.
pub struct Windows;

impl Platform for Windows {
    fn config_path(&self) -> &'static str {
        "C:/etc/rancher/wins/config"
    }

    fn section(&self) -> Option<&'static Section> {
        const WINS: Section = Section { name: "systemagent", strict: "agentStrictTLSMode", debug: "debug" };
        Some(&WINS)
    }

    fn var_dir(&self) -> &'static str {
        "C:/var/lib/rancher/agent"
    }

    fn service(&self) -> &'static str {
        "rancher-wins"
    }

    fn blocking_threads(&self) -> usize {
        // Each pipe of a program blocks one until the last process closes it, which may be a service.
        512
    }

    fn has_control_planes(&self) -> bool {
        false
    }

    fn has_installer(&self) -> bool {
        false
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

    fn script_name(&self) -> &'static str {
        "drover-script.ps1"
    }

    fn script(&self, path: String, _: &str) -> (String, Vec<String>) {
        ("powershell.exe".into(), vec!["-File".into(), path])
    }

    fn search_path(&self, env: &[(String, String)], dir: &str) -> String {
        // Most call it `Path` there, and mean the same.
        let own = env.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case("PATH"));
        format!("{};{dir}", own.map_or("", |(_, value)| value))
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

    #[test]
    fn a_script_is_the_shells_of_the_system_unless_it_names_its_own() {
        assert_eq!(Linux.script("/w/s.sh".into(), "true"), ("sh".into(), vec!["/w/s.sh".into()]));
        assert_eq!(Linux.script("/w/s.sh".into(), "#!/bin/x\n"), ("/w/s.sh".into(), vec![]));
        let (program, args) = Windows.script("C:/w/s.ps1".into(), "exit 0");
        assert_eq!((program.as_str(), args), ("powershell.exe", vec!["-File".into(), "C:/w/s.ps1".into()]));
    }

    #[test]
    fn the_search_path_of_an_instruction_ends_with_its_folder() {
        let env = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(Linux.search_path(&env("PATH", "/usr/bin:/bin"), "/w/x_0"), "/usr/bin:/bin:/w/x_0");
        assert_eq!(Linux.search_path(&env("Path", "/nowhere"), "/w"), ":/w");
        let windows = env("Path", r"C:\Windows;C:\bin");
        assert_eq!(Windows.search_path(&windows, r"C:\w\x_0"), r"C:\Windows;C:\bin;C:\w\x_0");
    }
}
