//! The printed command, run by a real shell: as root without sudo, and as another user with and without it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use drover_provisioning::registration::command::{Roles, node_command};
use drover_provisioning::settings::Settings;

const INSTALL_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/assets/system-agent-install.sh");

fn program(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn real(program: &str) -> PathBuf {
    let places = ["/bin", "/usr/bin"].map(|bin| Path::new(bin).join(program));
    places.iter().find(|path| path.exists()).unwrap_or(&places[0]).clone()
}

/// A folder with the programs that the command may find, and nothing else: `curl` downloads `script`.
fn tools(script: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    // The user who runs the command must be able to read it.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(dir.path().join("script"), script).unwrap();
    program(
        dir.path(),
        "curl",
        &format!("#!/bin/sh\nexec /bin/cat {}\n", dir.path().join("script").display()),
    );
    for name in ["sh", "id"] {
        std::os::unix::fs::symlink(real(name), dir.path().join(name)).unwrap();
    }
    dir
}

/// Runs the command as root or as another user. None if this host does not support that.
fn run(tools: &Path, as_root: bool) -> Option<Output> {
    let settings = Settings {
        server_url: "https://192.0.2.1:8443".into(),
        cacerts: "PEM".into(),
        ..Settings::default()
    };
    let line = node_command(&settings, "tok", Roles { worker: true, ..Roles::default() });
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    // By its path: it is not among the programs that the command finds.
    let mut command = Command::new(real(match (is_root, as_root) {
        (true, true) | (false, false) => "env",
        (false, true) => "unshare",
        (true, false) => "setpriv",
    }));
    if !is_root && as_root {
        command.args(["--map-root-user", "--"]);
    }
    if is_root && !as_root {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    }
    let output = command.args(["/bin/sh", "-c", &line]).env_clear().env("PATH", tools).output();
    match output {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("SKIPPED: another user cannot be played here: {error}");
            None
        }
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_command_needs_no_sudo_where_root_runs_it() {
    let tools = tools("echo \"user $(id -u): $*\"\n");
    program(tools.path(), "sudo", "#!/bin/sh\necho sudo was used\n");
    for sudo in [true, false] {
        if !sudo {
            std::fs::remove_file(tools.path().join("sudo")).unwrap();
        }
        let Some(output) = run(tools.path(), true) else { return };
        let text = said(&output);
        assert!(
            output.status.success() && text.starts_with("user 0: --server https://192.0.2.1:8443"),
            "{text}"
        );
        assert!(text.trim_end().ends_with("--worker") && text.contains("--token tok"), "{text}");
    }
}

#[test]
fn the_command_uses_sudo_if_another_user_runs_it() {
    let tools = tools("echo \"asked for $*\"\n");
    program(tools.path(), "sudo", "#!/bin/sh\necho \"sudo runs $1\"\nexec \"$@\"\n");
    let Some(output) = run(tools.path(), false) else { return };
    let text = said(&output);
    assert!(output.status.success() && text.starts_with("sudo runs sh\nasked for --server"), "{text}");
}

#[test]
fn the_command_says_what_is_missing_where_there_is_neither_root_nor_sudo() {
    let tools = tools(&std::fs::read_to_string(INSTALL_SCRIPT).unwrap());
    let Some(output) = run(tools.path(), false) else { return };
    let text = said(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("this must be run as root: log in as root, or install sudo"), "{text}");
}
