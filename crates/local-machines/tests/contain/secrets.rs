//! Which files of its host a machine can read, and which users it can become.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
};

use crate::support::Rig;

/// Files in the host's `/etc` that are not readable for everyone.
fn private_files() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![(PathBuf::from("/etc"), false)]);
    while let Some((folder, private)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                folders.push((entry.path(), private || meta.mode() & 0o001 == 0));
            } else if meta.is_file() && meta.len() > 0 && (private || meta.mode() & 0o004 == 0) {
                found.push(entry.path());
            }
        }
    }
    found
}

/// A machine cannot read passwords and keys in the host's `/etc`, including files that are created while it is running.
pub fn host_files_that_only_root_may_read(rig: Rig) {
    rig.create("m");
    if nix::unistd::geteuid().is_root() {
        let files = private_files();
        assert!(files.iter().any(|path| path.ends_with("shadow")), "{files:?}");
        for path in files {
            let (code, text) = rig.local.output("m", &["cat", &path.display().to_string()]).unwrap();
            let host = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            assert!(code != 0 || text != host, "a machine reads the host's {}", path.display());
        }
        let late = tempfile::Builder::new().prefix("drover-test-").tempfile_in("/etc").unwrap();
        fs::write(late.path(), "secret").unwrap();
        let name = late.path().display();
        assert_ne!(rig.code("m", &format!("cat {name}")), 0, "a machine reads a new private file");
        fs::set_permissions(late.path(), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(rig.sh("m", &format!("cat {name}")), "secret", "what everybody may read is shown");
    }
    // Files that the machine itself creates there are its own.
    rig.sh("m", "umask 077; echo own >/etc/rancher/key && grep -q own /etc/rancher/key");
    rig.sh("m", "cat /etc/passwd /etc/shadow /etc/os-release >/dev/null && ls /etc/ssl/certs >/dev/null");
    assert_eq!(rig.sh("m", "ls -A /run | grep -E 'public|empty|docker|containerd|dbus' || true"), "");
    rig.finish();
}

/// A setuid file of root does not give root permissions.
pub fn setuid_files_have_no_effect(rig: Rig) {
    rig.create("m");
    rig.sh("m", "cp $(command -v id) /usr/local/bin/become && chmod 4755 /usr/local/bin/become");
    if rig.local.hello().unwrap().only_root {
        eprintln!("SKIPPED the other user: only uid 0 exists inside");
    } else {
        let as_other = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        assert_eq!(rig.sh("m", &format!("{as_other} /usr/local/bin/become -u")), "65534");
        assert_ne!(rig.code("m", &format!("{as_other} su -c true root </dev/null 2>/dev/null")), 0);
        // Root can still become another user.
        assert_eq!(rig.sh("m", &format!("{as_other} id -u")), "65534");
    }
    rig.finish();
}
