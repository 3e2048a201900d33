//! Writes the files of a plan atomically and durably. Files that are already correct are not touched.

use std::{
    io,
    path::{Path, PathBuf},
};

use drover_plan::File;

use crate::host::{Attr, Host, Kind};

/// -1 keeps the current owner or group, as for chown.
const LEFT: u32 = u32::MAX;

/// Which file could not be written, and why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is empty.
    #[error("file {0} of the plan has an empty path")]
    NoPath(usize),
    /// The content cannot be decoded.
    #[error("{path}: content is not valid base64")]
    Content {
        /// The path.
        path: PathBuf,
    },
    /// The mode is not octal.
    #[error("{path}: permissions {permissions:?} are not a valid octal mode")]
    Permissions {
        /// The path.
        path: PathBuf,
        /// The value in the plan.
        permissions: String,
    },
    /// The uid or gid is out of range.
    #[error("{path}: uid {uid} or gid {gid} is out of range")]
    Owner {
        /// The path.
        path: PathBuf,
        /// The value in the plan.
        uid: i64,
        /// The value in the plan.
        gid: i64,
    },
    /// A file exists where the plan has a directory.
    #[error("{path}: cannot create the directory: a file with this name exists")]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// An operation on the host failed.
    #[error("failed to {verb} {path}: {source}")]
    Io {
        /// What failed.
        verb: &'static str,
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Writes the files in order and stops at the first error.
pub fn apply(host: &dyn Host, files: &[File]) -> Result<(), Error> {
    files.iter().enumerate().try_for_each(|(index, file)| apply_one(host, index, file))
}

fn apply_one(host: &dyn Host, index: usize, file: &File) -> Result<(), Error> {
    if file.path.is_empty() {
        return Err(Error::NoPath(index));
    }
    let path = Path::new(&file.path);
    let failed = |verb| move |source| Error::Io { verb, path: path.to_owned(), source };
    // Every other action means to write the file, as in the original agent.
    if file.action == "delete" {
        return delete(host, path, file.directory).map_err(failed("delete"));
    }
    let default = if file.directory { 0o755 } else { 0o600 };
    let attr = Attr { mode: mode(file, default)?, owner: Some(owner(file)?) };
    if file.directory {
        // Follow a link, as the original does: some hosts keep these directories elsewhere.
        if host.stat_target(path).is_ok_and(|stat| stat.kind != Kind::Directory) {
            return Err(Error::NotADirectory { path: path.to_owned() });
        }
        // Missing parents get the same mode, as in the original.
        let missing: Vec<&Path> = path.ancestors().take_while(|at| host.stat_target(at).is_err()).collect();
        for at in missing.into_iter().rev().filter(|at| *at != Path::new("")) {
            host.make_dirs(at, attr.mode).map_err(failed("create directory"))?;
        }
        return host.set_attr(path, attr).map_err(failed("set mode and owner of"));
    }
    let content =
        drover_plan::from_base64(&file.content).map_err(|_| Error::Content { path: path.to_owned() })?;
    if holds(host, path, &content) {
        return host.set_attr(path, attr).map_err(failed("set mode and owner of"));
    }
    if let Some(parent) = path.parent()
        && host.stat(parent).is_err()
    {
        host.make_dirs(parent, 0o755).map_err(failed("create the directory of"))?;
    }
    let owner = attr.owner.map(|owner| kept_owner(host, path, owner));
    host.replace(path, &content, Attr { owner, ..attr }).map_err(failed("write"))
}

/// Resolves an owner of -1 to the current owner, because the file is replaced by a new one.
fn kept_owner(host: &dyn Host, path: &Path, (uid, gid): (u32, u32)) -> (u32, u32) {
    if uid != LEFT && gid != LEFT {
        return (uid, gid);
    }
    let found = host.stat_target(path).map_or((LEFT, LEFT), |stat| (stat.uid, stat.gid));
    (if uid == LEFT { found.0 } else { uid }, if gid == LEFT { found.1 } else { gid })
}

fn holds(host: &dyn Host, path: &Path, content: &[u8]) -> bool {
    host.stat(path).is_ok_and(|stat| stat.kind == Kind::File && stat.len == content.len() as u64)
        && host.read(path).is_ok_and(|found| found == content)
}

fn delete(host: &dyn Host, path: &Path, recursive: bool) -> io::Result<()> {
    let removed = match host.stat(path) {
        Err(error) => Err(error),
        Ok(stat) if stat.kind == Kind::Directory && (recursive || host.list(path)?.is_empty()) => {
            host.remove_tree(path)
        }
        Ok(_) => host.remove_file(path),
    };
    match removed {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(())
        }
        other => other,
    }
}

fn mode(file: &File, default: u32) -> Result<u32, Error> {
    if file.permissions.is_empty() {
        return Ok(default);
    }
    // The original ignores setuid, setgid, sticky and the file type (`100644`). Existing plans rely on the rest being
    // accepted.
    u32::from_str_radix(&file.permissions, 8).ok().map(|mode| mode & 0o777).ok_or_else(|| {
        Error::Permissions { path: file.path.clone().into(), permissions: file.permissions.clone() }
    })
}

fn owner(file: &File) -> Result<(u32, u32), Error> {
    let id = |id: i64| if id == -1 { Ok(LEFT) } else { u32::try_from(id) };
    match (id(file.uid), id(file.gid)) {
        (Ok(uid), Ok(gid)) => Ok((uid, gid)),
        _ => Err(Error::Owner { path: file.path.clone().into(), uid: file.uid, gid: file.gid }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{MemoryHost, RealHost, testing::NoProgram};
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    /// Owned by the user that runs the tests.
    fn file(path: &str, content: &str) -> File {
        let (uid, gid) = RealHost::new().identity();
        let content = STANDARD.encode(content);
        File { path: path.into(), content, uid: uid.into(), gid: gid.into(), ..Default::default() }
    }

    fn disk() -> (tempfile::TempDir, RealHost) {
        let root = tempfile::tempdir().unwrap();
        let host = RealHost::at(root.path());
        (root, host)
    }

    #[test]
    fn agent_check_19_mode_and_owner_are_repaired_without_rewriting() {
        let (root, host) = disk();
        let path = root.path().join("etc/x");
        let root_user = host.identity().0 == 0;
        let mut wanted = File { permissions: "0640".into(), ..file("/etc/x", "a") };
        if root_user {
            (wanted.uid, wanted.gid) = (1000, 1000);
        }
        let owner = (wanted.uid, wanted.gid);
        let found =
            |stat: &std::fs::Metadata| (stat.mode() & 0o7777, (i64::from(stat.uid()), i64::from(stat.gid())));
        apply(&host, std::slice::from_ref(&wanted)).unwrap();
        let before = std::fs::metadata(&path).unwrap();
        assert_eq!(found(&before), (0o640, owner));
        if root_user {
            std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        apply(&host, &[wanted]).unwrap();
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!(found(&after), (0o640, owner));
        assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), before.mtime_nsec()), "not rewritten");
    }

    #[test]
    fn agent_check_20_missing_files_and_full_directories_are_deleted() {
        let (root, host) = disk();
        std::fs::create_dir_all(root.path().join("d/e")).unwrap();
        std::fs::write(root.path().join("d/e/f"), "x").unwrap();
        let delete = |path: &str, directory| File {
            path: path.into(),
            directory,
            action: "delete".into(),
            ..Default::default()
        };
        apply(&host, &[delete("/missing", false), delete("/missing/too", true), delete("/d", true)]).unwrap();
        assert!(!root.path().join("d").exists());
    }

    #[test]
    fn agent_check_21_invalid_content_and_modes_are_reported() {
        let (_root, host) = disk();
        let bad = File { path: "/a".into(), content: "%%%".into(), ..Default::default() };
        assert_eq!(apply(&host, &[bad]).unwrap_err().to_string(), "/a: content is not valid base64");
        let bad = File { permissions: "9x".into(), ..file("/a", "") };
        assert!(apply(&host, &[bad]).unwrap_err().to_string().contains("9x"));
        assert!(matches!(apply(&host, &[file("", "")]), Err(Error::NoPath(0))));
        let bad = File { uid: -2, ..file("/a", "") };
        assert!(matches!(apply(&host, &[bad]), Err(Error::Owner { .. })));
    }

    #[test]
    fn a_file_in_place_of_a_directory_is_kept_and_fails_the_plan() {
        let (root, host) = disk();
        let path = root.path().join("reg");
        std::fs::write(&path, "data").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink("reg", root.path().join("link")).unwrap();
        for name in ["/reg", "/link"] {
            let wanted = File { directory: true, permissions: "0777".into(), ..file(name, "") };
            let shown = apply(&host, &[wanted]).unwrap_err().to_string();
            assert_eq!(shown, format!("{name}: cannot create the directory: a file with this name exists"));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn values_that_the_original_accepts_are_accepted() {
        let (root, host) = disk();
        let at = |name: &str| root.path().join(name);
        let odd = File {
            action: "create".into(),
            permissions: "100640".into(),
            uid: -1,
            gid: -1,
            ..file("/a", "x")
        };
        apply(&host, std::slice::from_ref(&odd)).unwrap();
        apply(&host, &[odd]).unwrap();
        assert_eq!(std::fs::metadata(at("a")).unwrap().mode() & 0o7777, 0o640);
        std::fs::create_dir_all(at("empty")).unwrap();
        std::fs::create_dir_all(at("full/x")).unwrap();
        let delete = |path: &str| File { action: "delete".into(), ..file(path, "") };
        apply(&host, &[delete("/empty")]).unwrap();
        assert!(!at("empty").exists());
        assert!(apply(&host, &[delete("/full")]).is_err(), "only with directory: true");
        assert!(at("full/x").exists());
    }

    #[test]
    fn an_owner_of_minus_one_is_kept_when_the_content_changes() {
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram);
        let owned = |uid, gid, content| File { uid, gid, ..file("/a", content) };
        let owner = || host.stat(Path::new("/a")).map(|stat| (stat.uid, stat.gid)).unwrap();
        apply(&host, &[owned(7, 8, "old"), owned(-1, -1, "new")]).unwrap();
        assert_eq!((owner(), host.read(Path::new("/a")).unwrap()), ((7, 8), b"new".to_vec()));
        apply(&host, &[owned(-1, 9, "newer")]).unwrap();
        assert_eq!(owner(), (7, 9));
    }

    #[test]
    fn a_directory_behind_a_link_gets_its_mode_and_owner() {
        let (root, host) = disk();
        std::fs::create_dir(root.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", root.path().join("link")).unwrap();
        let dir = File { directory: true, permissions: "711".into(), ..file("/link", "") };
        apply(&host, &[dir]).unwrap();
        assert_eq!(std::fs::metadata(root.path().join("real")).unwrap().mode() & 0o7777, 0o711);
        assert!(root.path().join("link").is_symlink());
    }

    #[test]
    fn base64_is_decoded_as_in_go() {
        let (root, host) = disk();
        for content in ["aGVs\nbG8=\r\n", "aGVsbG9="] {
            apply(&host, &[File { content: content.into(), ..file("/a", "") }]).unwrap();
            assert_eq!(std::fs::read(root.path().join("a")).unwrap(), b"hello", "{content:?}");
        }
    }

    #[tokio::test]
    async fn agent_check_22_after_a_crash_the_path_holds_old_or_new() {
        let plan = [file("/etc/a", "new a"), file("/etc/b", "new b"), file("/srv/deep/c", "new c")];
        for crash in 0.. {
            let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram);
            apply(&host, &[file("/etc/a", "old a"), file("/etc/b", "old b")]).unwrap();
            host.crash_after_writes(crash);
            let finished = apply(&host, &plan).is_ok();
            host.restart();
            for (path, new) in [("/etc/a", "new a"), ("/etc/b", "new b")] {
                let found = String::from_utf8(host.read(Path::new(path)).unwrap()).unwrap();
                assert!(found == new || found == new.replace("new", "old"), "{found}");
            }
            apply(&host, &plan).unwrap();
            assert_eq!(host.read(Path::new("/srv/deep/c")).unwrap(), b"new c");
            if finished {
                assert!(crash >= 4, "each write was interrupted once");
                // All of these writes were durable.
                host.crash_after_writes(0);
                host.restart();
                for (path, new) in [("/etc/a", "new a"), ("/etc/b", "new b"), ("/srv/deep/c", "new c")] {
                    assert_eq!(host.read(Path::new(path)).unwrap(), new.as_bytes());
                }
                break;
            }
        }
    }

    #[test]
    fn symlinks_are_replaced_not_followed() {
        let (root, host) = disk();
        std::fs::write(root.path().join("victim"), "keep").unwrap();
        std::os::unix::fs::symlink("victim", root.path().join("link")).unwrap();
        apply(&host, &[file("/link", "new")]).unwrap();
        assert_eq!(std::fs::read_to_string(root.path().join("victim")).unwrap(), "keep");
        assert_eq!(std::fs::read_to_string(root.path().join("link")).unwrap(), "new");
        assert!(!root.path().join("link").is_symlink());
        let left = std::fs::read_dir(root.path()).unwrap().count();
        assert_eq!(left, 2, "no temporary file is left");
    }

    #[test]
    fn directories_get_their_mode() {
        let (root, host) = disk();
        std::fs::create_dir(root.path().join("a")).unwrap();
        let before = std::fs::metadata(root.path().join("a")).unwrap().mode();
        let dir = File { directory: true, permissions: "711".into(), ..file("/a/b/c", "") };
        apply(&host, std::slice::from_ref(&dir)).unwrap();
        apply(&host, &[dir]).unwrap();
        assert_eq!(std::fs::metadata(root.path().join("a/b/c")).unwrap().mode() & 0o7777, 0o711);
        assert_eq!(std::fs::metadata(root.path().join("a/b")).unwrap().mode() & 0o7777, 0o711);
        assert_eq!(std::fs::metadata(root.path().join("a")).unwrap().mode(), before, "it existed before");
    }
}
