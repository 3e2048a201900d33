//! The argument parser of the install script: run by a real shell, and compared with the expected result.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The variables that the parser sets, in the order in which they are printed.
const VARIABLES: [&str; 12] = [
    "CATTLE_ROLE_CONTROLPLANE",
    "CATTLE_ROLE_ETCD",
    "CATTLE_ROLE_WORKER",
    "CATTLE_ROLE_NONE",
    "CATTLE_NODE_NAME",
    "CATTLE_ADDRESS",
    "CATTLE_INTERNAL_ADDRESS",
    "CATTLE_LABELS",
    "CATTLE_TAINTS",
    "CATTLE_SERVER",
    "CATTLE_TOKEN",
    "CATTLE_CA_CHECKSUM",
];

/// The script without its last line, which would start the installation, and with a line that prints the variables.
static DRY: LazyLock<String> = LazyLock::new(|| {
    let script = drover_agent::INSTALL_SCRIPT.trim_end();
    let body = script.strip_suffix("main \"$@\"").expect("the script's last line calls main");
    let names: String = VARIABLES.iter().map(|name| format!(" \"${name}\"")).collect();
    format!("{body}\nparse_args \"$@\"\nprintf '%s\\n'{names}\n")
});

/// Arguments, one per line. They are either parsed exactly as written, or rejected with a message.
pub fn install_args(data: &[u8]) {
    // Arguments cannot contain a zero byte; a shell variable cannot end with a newline.
    let args: Vec<Vec<u8>> = data
        .split(|byte| *byte == b'\n')
        .take(32)
        .map(|arg| arg.iter().copied().filter(|byte| *byte != 0).collect())
        .collect();
    let output = Command::new("sh")
        .args(["-c", DRY.as_str(), "install.sh"])
        .args(args.iter().cloned().map(OsString::from_vec))
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("the shell can be started");
    match expected_variables(&args) {
        Some(values) => {
            let mut expected: Vec<u8> = values.join(&b'\n');
            expected.push(b'\n');
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&expected),
                "the parsed variables differ from the arguments"
            );
            assert_eq!(output.stdout, expected);
        }
        None => {
            assert_eq!(output.status.code(), Some(1), "{:?}", String::from_utf8_lossy(&output.stdout));
            assert!(output.stderr.starts_with(b"[FATAL] "), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout.is_empty());
        }
    }
}

/// The expected variables; `None` if the arguments must be rejected.
fn expected_variables(args: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let mut values = vec![Vec::new(); VARIABLES.len()];
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let arg = std::str::from_utf8(arg).ok()?;
        let roles: &[usize] = match arg {
            "--all-roles" | "-a" => &[0, 1, 2],
            "--controlplane" | "-p" => &[0],
            "--etcd" | "-e" => &[1],
            "--worker" | "-w" => &[2],
            "--no-roles" => &[3],
            "--insecure" => continue,
            _ => &[],
        };
        if !roles.is_empty() {
            for role in roles {
                values[*role] = b"true".to_vec();
            }
            continue;
        }
        let at = match arg {
            "--node-name" | "-n" => 4,
            "--address" => 5,
            "--internal-address" | "-i" => 6,
            "--label" | "-l" => 7,
            "--taint" | "--taints" => 8,
            "--server" | "-s" => 9,
            "--token" | "-t" => 10,
            "--ca-checksum" | "-c" => 11,
            _ => return None,
        };
        let value = args.next().filter(|value| !value.is_empty())?;
        if matches!(at, 7 | 8) && !values[at].is_empty() {
            values[at].push(b',');
            values[at].extend_from_slice(value);
        } else {
            values[at].clone_from(value);
        }
    }
    Some(values)
}
