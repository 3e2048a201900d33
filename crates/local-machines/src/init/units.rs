//! Finds units, and writes the links of `enable` and `disable`. Works below a root directory, so that tests need no
//! machine.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::unitfile::UnitFile;

/// Searched in this order. Units in `/usr/lib/systemd/system` belong to the host and are not used.
const SEARCH: &[&str] = &["etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system"];
const OWN: &str = "etc/systemd/system";

/// The units of one file system.
#[derive(Debug, Clone)]
pub(crate) struct Units {
    root: PathBuf,
}

/// A unit on disk.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) path: PathBuf,
    pub(crate) file: UnitFile,
}

impl Units {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Units {
        Units { root: root.into() }
    }

    /// Reads a unit and its drop-ins. Returns `None` if there is no file.
    pub(crate) fn load(&self, name: &str) -> io::Result<Option<Loaded>> {
        let template = template_of(name);
        for directory in SEARCH {
            for candidate in std::iter::once(name).chain(template.as_deref()) {
                let path = self.root.join(directory).join(candidate);
                let mut file = UnitFile::default();
                match fs::read_to_string(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                    Ok(text) => file.read(&text),
                }
                for text in self.drop_ins(candidate) {
                    file.read(&text);
                }
                return Ok(Some(Loaded { path, file }));
            }
        }
        Ok(None)
    }

    fn drop_ins(&self, name: &str) -> Vec<String> {
        let mut files: Vec<PathBuf> = SEARCH
            .iter()
            .filter_map(|directory| fs::read_dir(self.root.join(directory).join(format!("{name}.d"))).ok())
            .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "conf"))
            .collect();
        files.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
        files.iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
    }

    /// The enabled units, which are started at boot.
    pub(crate) fn enabled(&self) -> Vec<String> {
        let mut names: Vec<String> =
            ["multi-user.target.wants", "default.target.wants", "basic.target.wants"]
                .iter()
                .filter_map(|wants| fs::read_dir(self.root.join(OWN).join(wants)).ok())
                .flat_map(|entries| entries.flatten())
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .filter(|name| name.ends_with(".service"))
                .collect();
        names.sort();
        names.dedup();
        names
    }

    /// All services that have a file.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut names: Vec<String> = SEARCH
            .iter()
            .filter_map(|directory| fs::read_dir(self.root.join(directory)).ok())
            .flat_map(|entries| entries.flatten())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".service") && !name.ends_with("@.service"))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// The output of `is-enabled`; `None` if the unit does not exist.
    pub(crate) fn enablement(&self, name: &str) -> Option<&'static str> {
        if fs::read_link(self.root.join(OWN).join(name)).is_ok_and(|target| target == Path::new("/dev/null"))
        {
            return Some("masked");
        }
        let loaded = self.load(name).ok()??;
        let wanted =
            self.wants_directories().iter().any(|directory| directory.join(name).symlink_metadata().is_ok());
        let installable = ["WantedBy", "RequiredBy", "Alias", "Also"]
            .iter()
            .any(|key| !loaded.file.list("Install", key).is_empty());
        Some(match (wanted, installable) {
            (true, _) => "enabled",
            (false, true) => "disabled",
            (false, false) => "static",
        })
    }

    fn wants_directories(&self) -> Vec<PathBuf> {
        fs::read_dir(self.root.join(OWN))
            .into_iter()
            .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|kind| kind == "wants" || kind == "requires"))
            .collect()
    }

    /// Creates the links that start a unit at boot. Returns a message for each.
    pub(crate) fn enable(&self, name: &str, loaded: &Loaded) -> io::Result<Vec<String>> {
        // Links contain the path inside the machine.
        let target = Path::new("/").join(loaded.path.strip_prefix(&self.root).unwrap_or(&loaded.path));
        let mut links = Vec::new();
        for (key, suffix) in [("WantedBy", "wants"), ("RequiredBy", "requires")] {
            for wanting in loaded.file.names("Install", key) {
                links.push(format!("{wanting}.{suffix}/{name}"));
            }
        }
        links.extend(loaded.file.names("Install", "Alias"));
        let mut messages = Vec::new();
        for link in links {
            let path = self.root.join(OWN).join(&link);
            if fs::read_link(&path).is_ok_and(|old| old == target) {
                continue;
            }
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let _ = fs::remove_file(&path);
            symlink(&target, &path)?;
            messages.push(format!("Created symlink /{OWN}/{link} → {}.\n", target.display()));
        }
        Ok(messages)
    }

    /// Removes all links to a unit. Returns a message for each.
    pub(crate) fn disable(&self, name: &str) -> io::Result<Vec<String>> {
        let mut links: Vec<PathBuf> =
            self.wants_directories().iter().map(|directory| directory.join(name)).collect();
        if let Ok(Some(loaded)) = self.load(name) {
            links.extend(
                loaded.file.names("Install", "Alias").iter().map(|alias| self.root.join(OWN).join(alias)),
            );
        }
        let mut messages = Vec::new();
        for link in links {
            if link.is_symlink() {
                fs::remove_file(&link)?;
                let shown = link.strip_prefix(&self.root).unwrap_or(&link);
                messages.push(format!("Removed \"/{}\".\n", shown.display()));
            }
        }
        Ok(messages)
    }

    /// Prevents that the unit is started until `unmask`.
    pub(crate) fn mask(&self, name: &str) -> io::Result<()> {
        let path = self.root.join(OWN).join(name);
        if path.exists() && !path.is_symlink() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{} is a file", path.display()),
            ));
        }
        let _ = fs::remove_file(&path);
        symlink("/dev/null", path)
    }

    pub(crate) fn unmask(&self, name: &str) -> io::Result<()> {
        let path = self.root.join(OWN).join(name);
        match fs::read_link(&path) {
            Ok(target) if target == Path::new("/dev/null") => fs::remove_file(path),
            _ => Ok(()),
        }
    }
}

fn template_of(name: &str) -> Option<String> {
    let (stem, suffix) = name.rsplit_once('.')?;
    let (prefix, _) = stem.split_once('@')?;
    Some(format!("{prefix}@.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enable_disable_mask_and_drop_ins() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join(OWN);
        fs::create_dir_all(own.join("a.service.d")).unwrap();
        fs::write(own.join("a.service"), "[Service]\nExecStart=/a\n[Install]\nWantedBy=multi-user.target\n")
            .unwrap();
        fs::write(own.join("a.service.d/10.conf"), "[Service]\nEnvironment=X=1\n").unwrap();
        fs::write(own.join("t@.service"), "[Service]\nExecStart=/t %i\n").unwrap();
        let units = Units::new(root.path());
        assert_eq!(units.enablement("a.service"), Some("disabled"));
        let loaded = units.load("a.service").unwrap().unwrap();
        assert_eq!(loaded.file.list("Service", "Environment"), ["X=1"]);
        assert_eq!(units.enable("a.service", &loaded).unwrap().len(), 1);
        assert!(units.enable("a.service", &loaded).unwrap().is_empty());
        assert_eq!(
            (units.enablement("a.service"), units.enabled()),
            (Some("enabled"), vec!["a.service".into()])
        );
        assert_eq!(units.disable("a.service").unwrap().len(), 1);
        assert_eq!((units.enablement("a.service"), units.enabled().len()), (Some("disabled"), 0));
        assert_eq!(
            (units.enablement("t@x.service"), units.enablement("none.service")),
            (Some("static"), None)
        );
        assert!(units.mask("a.service").is_err());
        units.mask("b.service").unwrap();
        assert_eq!(units.enablement("b.service"), Some("masked"));
        units.unmask("b.service").unwrap();
        assert_eq!(units.enablement("b.service"), None);
    }
}
