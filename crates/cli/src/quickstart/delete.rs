//! `quickstart --delete`: removes what Drover made in a data directory, and nothing else.

use std::io;
use std::path::Path;

use anyhow::{Context, bail};
use drover_local_machines::Local;
use drover_server::DataDir;

use super::instance;
use crate::output::print_line;
use crate::server::own_executable;

/// Everything that Drover creates at the top level of a data directory.
const OURS: [&str; 16] = [
    "clusters",
    "db",
    "drover.log",
    "identity",
    "images",
    "images-unpacked",
    "jobs",
    "kubeconfig.yaml",
    "local",
    "lock",
    "machine-store",
    "quickstart.bind",
    "quickstart.out",
    "quickstart.ready",
    "tls",
    MARK,
];

/// Prefixes of temporary files, which are then renamed.
const UNFINISHED: [&str; 2] = ["identity.new-", "kubeconfig.new-"];

/// Created before anything is removed, and removed last, so that an interrupted removal can be continued.
const MARK: &str = instance::PID_FILE;

/// A directory with all files of one of these sets is a data directory. Single folders prove nothing: other programs
/// have a `db` or a `local`, too.
const MARKS: [&[&str]; 7] = [
    &[MARK],
    &["db/store.db"],
    &["db/lock"],
    &["local/holder.lock"],
    &["machine-store/locks"],
    &["images/system-agent-installer-k3s.stamp"],
    &["identity", "lock"],
];

pub(super) async fn delete(path: &Path) -> anyhow::Result<i32> {
    let shown = path.display();
    let Some(data_dir) = DataDir::existing(path).with_context(|| format!("{shown} cannot be deleted"))?
    else {
        print_line(&format!("there is nothing to delete: {shown} does not exist"));
        return Ok(0);
    };
    if names(&data_dir)?.is_empty() {
        print_line(&format!("there is nothing to delete: {shown} is empty"));
        return Ok(0);
    }
    if !is_ours(&data_dir) {
        bail!("{shown} is not a data directory of drover; nothing was deleted");
    }
    instance::stop_running(&data_dir).await?;
    // Stop the server first, so that a refused command leaves no file behind.
    let _locks = (data_dir.claim().context("nothing was deleted")?, instance::keep_out(&data_dir)?);
    let (dir, exe) = (data_dir.path().to_owned(), own_executable()?);
    tokio::task::spawn_blocking(move || Local::attach(&dir, &exe)?.destroy())
        .await?
        .context("the local machines could not be removed")?;
    print_line(&remove(&data_dir)?);
    Ok(0)
}

fn is_ours(data_dir: &DataDir) -> bool {
    MARKS.iter().any(|mark| mark.iter().all(|name| data_dir.path().join(name).exists()))
}

fn names(data_dir: &DataDir) -> anyhow::Result<Vec<String>> {
    let dir = data_dir.path();
    let listed = || -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(dir)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    let mut names = listed().with_context(|| format!("{} cannot be read", dir.display()))?;
    names.sort();
    Ok(names)
}

/// Removes the files of Drover, and the directory if nothing else is in it. Returns what was done.
fn remove(data_dir: &DataDir) -> anyhow::Result<String> {
    let dir = data_dir.path();
    let ours = |name: &str| OURS.contains(&name) || UNFINISHED.iter().any(|part| name.starts_with(part));
    let (mut removable, others): (Vec<_>, Vec<_>) = names(data_dir)?.into_iter().partition(|name| ours(name));
    removable.sort_by_key(|name| name == MARK);
    for name in removable {
        let path = dir.join(name);
        let folder = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        let removed = if folder { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{} cannot be removed", path.display()));
            }
            _ => {}
        }
    }
    if !others.is_empty() {
        let more = others.len().saturating_sub(3);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let some = others[..others.len().min(3)].join(", ");
        return Ok(format!(
            "removed everything of drover; kept {} because it contains other files: {some}{more}",
            dir.display()
        ));
    }
    Ok(match std::fs::remove_dir(dir) {
        Ok(()) => "removed everything".to_owned(),
        // For example a mount point, or a directory whose parent is read-only.
        Err(error) => {
            format!("removed everything except {} itself: {error}", dir.display())
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    fn directory(files: &[&str]) -> (tempfile::TempDir, DataDir) {
        let home = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(&home.path().join("data")).unwrap();
        for file in files {
            let path = data_dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        (home, data_dir)
    }

    #[test]
    fn folders_of_other_programs_are_not_taken_for_a_data_directory() {
        for files in [
            &["local/bin/tool", "lib/x"][..],
            &["db/customers.sql"],
            &["identity"],
            &["lock"],
            &["images/cat.png", "clusters/a", "tls/ca.crt", "kubeconfig.yaml"],
        ] {
            assert!(!is_ours(&directory(files).1), "{files:?}");
        }
        for files in
            [&["db/store.db"][..], &["local/holder.lock"], &["quickstart.pid"], &["identity", "lock"]]
        {
            assert!(is_ours(&directory(files).1), "{files:?}");
        }
    }

    #[test]
    fn only_files_of_drover_are_removed() {
        let (_home, data_dir) = directory(&[
            "db/store.db",
            "kubeconfig.yaml",
            "kubeconfig.new-7",
            "quickstart.bind",
            "quickstart.pid",
            "tls/ca.crt",
        ]);
        assert_eq!(remove(&data_dir).unwrap(), "removed everything");
        assert!(!data_dir.path().exists());

        let (_home, data_dir) = directory(&["db/store.db", "a", "b/c", "d", "e", "kubeconfig.yaml.mine"]);
        std::os::unix::fs::symlink(data_dir.path().join("b"), data_dir.path().join("images")).unwrap();
        let text = remove(&data_dir).unwrap();
        assert!(text.contains("because it contains other files: a, b, d and 2 more"), "{text}");
        assert_eq!(names(&data_dir).unwrap(), ["a", "b", "d", "e", "kubeconfig.yaml.mine"]);
        assert!(data_dir.path().join("b/c").exists(), "a link was followed");
    }
}
