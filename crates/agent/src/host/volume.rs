//! Paths of a simulated machine that are in a real directory, for programs that need real files.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{Attr, Host as _, RealHost, Stat};

/// See the module.
pub(super) struct Volume {
    at: PathBuf,
    dir: RealHost,
}

impl Volume {
    /// Maps the paths below `at` to `root`.
    pub(super) fn new(at: PathBuf, root: &Path) -> Self {
        Self { at, dir: RealHost::unsynced(root) }
    }

    /// Whether a path without `.` and `..` is in the volume.
    pub(super) fn holds(&self, path: &Path) -> bool {
        path.starts_with(&self.at)
    }

    /// The metadata of a path. The user of this process represents the machine's root.
    pub(super) fn stat(&self, path: &Path) -> io::Result<Stat> {
        Ok(Stat { uid: 0, gid: 0, ..self.dir.stat(path)? })
    }

    /// Keeps the owner of real files, which an ordinary user cannot change.
    pub(super) fn attr(attr: Attr) -> Attr {
        Attr { owner: None, ..attr }
    }

    pub(super) fn files(&self) -> &RealHost {
        &self.dir
    }
}

#[cfg(test)]
mod tests {
    use crate::host::{Attr, Host as _, Kind, MemoryHost, testing::NoProgram};
    use std::path::Path;

    const PRIVATE: Attr = Attr { mode: 0o600, owner: Some((0, 0)) };

    #[tokio::test]
    async fn a_volume_uses_real_files_and_the_rest_is_in_memory() {
        let root = tempfile::tempdir().unwrap();
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram)
            .with_volume("/etc/rancher/k3s", root.path());
        host.make_dirs(Path::new("/etc/rancher/k3s/config.yaml.d"), 0o700).unwrap();
        let config = Path::new("/etc/rancher/k3s/config.yaml.d/50-rancher.yaml");
        host.replace(config, b"{}", PRIVATE).unwrap();
        host.set_attr(config, PRIVATE).unwrap();
        let real = root.path().join("etc/rancher/k3s");
        assert_eq!(std::fs::read(real.join("config.yaml.d/50-rancher.yaml")).unwrap(), b"{}");
        std::fs::write(real.join("k3s.yaml"), "admin").unwrap();
        assert_eq!(host.read(Path::new("/etc/rancher/k3s/k3s.yaml")).unwrap(), b"admin");
        assert_eq!(host.list(Path::new("/etc/rancher/k3s")).unwrap(), ["config.yaml.d", "k3s.yaml"]);
        let stat = host.stat(config).unwrap();
        assert_eq!((stat.kind, stat.mode, stat.uid, stat.gid), (Kind::File, 0o600, 0, 0));

        // Similar prefixes and paths with `..` are outside of the volume.
        host.make_dirs(Path::new("/etc/rancher/k3s-old"), 0o755).unwrap();
        host.make_dirs(Path::new("/etc/rancher/k3s/../agent"), 0o755).unwrap();
        assert!(!root.path().join("etc/rancher/k3s-old").exists());
        assert!(!root.path().join("etc/rancher/agent").exists());
        assert_eq!(host.list(Path::new("/etc/rancher")).unwrap(), ["agent", "k3s-old"]);
    }

    #[tokio::test]
    async fn nothing_is_written_to_a_volume_while_the_power_is_off() {
        let root = tempfile::tempdir().unwrap();
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram).with_volume("/v", root.path());
        host.make_dirs(Path::new("/v"), 0o755).unwrap();
        host.crash_after_writes(1);
        assert!(!host.is_dead());
        host.replace(Path::new("/v/one"), b"1", PRIVATE).unwrap();
        assert!(host.is_dead());
        assert!(host.replace(Path::new("/v/two"), b"2", PRIVATE).is_err());
        assert_eq!(host.list(Path::new("/v")).unwrap(), ["one"]);
        host.restart();
        assert!(!host.is_dead());
        host.replace(Path::new("/v/two"), b"2", PRIVATE).unwrap();
        assert!(root.path().join("v/two").exists());
    }
}
