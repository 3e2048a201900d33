//! Differences between the operating systems that a plan can be for, except for access to the machine (`host`). Both
//! are always compiled, so that most of the code for Windows is tested everywhere.

/// One operating system, as the original agent treats it.
pub trait Platform: Send + Sync {
    /// The default path of the configuration; `CATTLE_AGENT_CONFIG` overrides it.
    fn config_path(&self) -> &'static str;
    /// The agent's section in that file, if the file belongs to another program.
    fn section(&self) -> Option<&'static Section>;
    /// The default directory for the agent's state.
    fn var_dir(&self) -> &'static str;
    /// The name of the service that runs the agent.
    fn service(&self) -> &'static str;
    /// The maximum number of threads for blocking work.
    fn blocking_threads(&self) -> usize;
    /// Whether a node can be a control plane node, and so open a tunnel to its cluster.
    fn has_control_planes(&self) -> bool;
    /// Whether the agent has an installer, which `uninstall` reverts.
    fn has_installer(&self) -> bool;
    /// Whether mode and owner of the agent's files are checked. Otherwise an access list protects them, which the
    /// installer sets.
    fn checks_modes(&self) -> bool;
    /// Whether installer and agent wait for each other.
    fn has_interlock(&self) -> bool;
    /// The program and arguments of an instruction without a command, in its directory.
    fn entry(&self, dir: &str) -> (String, Vec<String>);
    /// The file name of an instruction's script.
    fn script_name(&self) -> &'static str;
    /// The program and arguments that run the script.
    fn script(&self, path: String, text: &str) -> (String, Vec<String>);
    /// The PATH of an instruction: the agent's own PATH, followed by the instruction's directory.
    fn search_path(&self, env: &[(String, String)], dir: &str) -> String;
    /// The only directory of an image that is unpacked, to the top level; `None` for the whole image.
    fn image_root(&self) -> Option<&'static str>;
}

/// The agent's section in the configuration file of another program, and settings for the agent outside of it. All are
/// top-level keys; the file is YAML whatever its name.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    /// The key of the agent's section.
    pub name: &'static str,
    /// If true, trust only the CA in the connection file, as `CATTLE_AGENT_STRICT_VERIFY` does on Linux.
    pub strict: &'static str,
    /// If true, enable debug logs, unless `CATTLE_LOGLEVEL` is set.
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

/// Windows, for worker nodes. The original agent runs inside the service `rancher-wins`.
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
        // Each pipe of a program blocks a thread until the last process closes it, which can be a service.
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
        // Usually it is spelled `Path` on Windows, where names are case-insensitive.
        let own = env.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case("PATH"));
        format!("{};{dir}", own.map_or("", |(_, value)| value))
    }

    fn image_root(&self) -> Option<&'static str> {
        Some("Files/bin")
    }
}

/// The platform of this build.
#[cfg(not(windows))]
pub const CURRENT: &dyn Platform = &Linux;
/// The platform of this build.
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
    fn a_script_runs_in_the_systems_shell_unless_it_has_a_shebang() {
        assert_eq!(Linux.script("/w/s.sh".into(), "true"), ("sh".into(), vec!["/w/s.sh".into()]));
        assert_eq!(Linux.script("/w/s.sh".into(), "#!/bin/x\n"), ("/w/s.sh".into(), vec![]));
        let (program, args) = Windows.script("C:/w/s.ps1".into(), "exit 0");
        assert_eq!((program.as_str(), args), ("powershell.exe", vec!["-File".into(), "C:/w/s.ps1".into()]));
    }

    #[test]
    fn the_path_of_an_instruction_ends_with_its_directory() {
        let env = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(Linux.search_path(&env("PATH", "/usr/bin:/bin"), "/w/x_0"), "/usr/bin:/bin:/w/x_0");
        assert_eq!(Linux.search_path(&env("Path", "/nowhere"), "/w"), ":/w");
        let windows = env("Path", r"C:\Windows;C:\bin");
        assert_eq!(Windows.search_path(&windows, r"C:\w\x_0"), r"C:\Windows;C:\bin;C:\w\x_0");
    }
}
