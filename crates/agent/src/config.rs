//! The agent's two files: its configuration, and its connection to the management plane.
//!
//! Both contain or reference a credential, so on Linux only the agent may have access to them. On Windows the
//! configuration is a section in the file of the service that contains the original agent.

mod content;
mod section;

use std::{
    io,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    duration,
    host::Host,
    platform::{self, Platform},
};

/// The default path of the configuration; `CATTLE_AGENT_CONFIG` overrides it.
pub fn default_path() -> &'static str {
    platform::CURRENT.config_path()
}
/// The default directory for the agent's state.
pub fn default_var_dir() -> &'static str {
    platform::CURRENT.var_dir()
}
/// The default directory for image tarballs.
pub fn default_images_dir() -> PathBuf {
    Path::new(default_var_dir()).join("images")
}

/// Why a file of the agent was rejected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading the file failed.
    #[error("failed to read {path}: {source}")]
    Read {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Other users can read the file.
    #[error("{path} has mode {found:04o}, but must have mode 0600")]
    Mode {
        /// The path.
        path: PathBuf,
        /// Its mode.
        found: u32,
    },
    /// The file belongs to another user.
    #[error("{path} is owned by {}:{}, but must be owned by {}:{} (0600, uid:gid of the agent)",
        found.0, found.1, expected.0, expected.1)]
    Owner {
        /// The path.
        path: PathBuf,
        /// Its uid and gid.
        found: (u32, u32),
        /// The agent's.
        expected: (u32, u32),
    },
    /// The format is not known from the file name.
    #[error("{0}: the file name must contain .json, .yaml or .yml")]
    Extension(PathBuf),
    /// The content does not have the format of the file name.
    #[error("failed to parse {path}: {message}")]
    Parse {
        /// The path.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// A required field is missing or empty.
    #[error("{path}: field {field} is missing or empty")]
    Missing {
        /// The path.
        path: PathBuf,
        /// Which field.
        field: &'static str,
    },
    /// The work directory is a system directory.
    #[error(
        "{path}: workDirectory must not be a system directory, because it is emptied before every plan; it is set to \
         {directory}"
    )]
    WorkDirectory {
        /// The path.
        path: PathBuf,
        /// Its value.
        directory: PathBuf,
    },
    /// Neither local nor remote plans are enabled.
    #[error("{0}: neither localEnabled nor remoteEnabled is true; set at least one of them")]
    NothingEnabled(PathBuf),
}

/// `config.yaml`, with the keys of the original.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Config {
    /// Working directory of instructions; emptied before each pass.
    pub work_directory: PathBuf,
    /// Watch a directory for plans.
    pub local_enabled: bool,
    /// The directory for local plans.
    pub local_plan_directory: PathBuf,
    /// Directory for copies of the applied plans; empty for none.
    pub applied_plan_directory: PathBuf,
    /// Watch the plan secret.
    pub remote_enabled: bool,
    /// The connection file.
    pub connection_info_file: PathBuf,
    /// Do not empty the working directory.
    pub preserve_work_directory: bool,
    /// The directory of image tarballs.
    pub images_directory: PathBuf,
    /// Path of the agent's registries.yaml.
    pub agent_registries_file: PathBuf,
    /// Configuration of credential provider plugins.
    pub image_credential_provider_config: PathBuf,
    /// Directory of credential provider plugins.
    pub image_credential_provider_bin_directory: PathBuf,
    /// Directory in which installer and agent wait for each other; empty for none.
    pub interlock_directory: PathBuf,
    /// Drover only: pull images from the server of the connection file, after the mirrors and before the image's
    /// registry.
    pub images_from_server: bool,
    /// Drover only: do not upgrade the agent, whatever the manager offers.
    pub pin_agent: bool,
    /// Drover only: the maximum duration of one instruction; 0 for no limit. Default: one hour.
    pub instruction_timeout_seconds: Option<u64>,
    /// Trust only the CA in the connection file; set outside of the section, if there is one.
    #[serde(skip)]
    pub strict: bool,
}

/// Its text fields.
const CONFIG_TEXTS: &[&str] = &[
    "workDirectory",
    "localPlanDirectory",
    "appliedPlanDirectory",
    "connectionInfoFile",
    "imagesDirectory",
    "agentRegistriesFile",
    "imageCredentialProviderConfig",
    "imageCredentialProviderBinDirectory",
    "interlockDirectory",
];
/// Its other fields.
const CONFIG_OTHERS: &[&str] = &[
    "localEnabled",
    "remoteEnabled",
    "preserveWorkDirectory",
    "imagesFromServer",
    "pinAgent",
    "instructionTimeoutSeconds",
];
const CONNECTION_TEXTS: &[&str] = &["kubeConfig", "namespace", "secretName"];

impl Config {
    /// Reads and validates the file.
    pub fn load(host: &dyn Host, path: &Path) -> Result<Self, Error> {
        Self::load_on(platform::CURRENT, host, path)
    }

    /// Reads and validates the file as the agent of a platform does.
    pub fn load_on(platform: &dyn Platform, host: &dyn Host, path: &Path) -> Result<Self, Error> {
        let path = &host.absolute(path);
        let ((mut config, keys), outer) = match section::read(platform, host, path)? {
            Some((own, outer)) => (parsed(path, content::fields::<Self>(own, CONFIG_TEXTS))?, outer),
            None => (read::<Self>(platform, host, path, CONFIG_TEXTS)?, section::OuterSettings::default()),
        };
        config.strict = outer.strict;
        for key in outer.others {
            tracing::warn!("{}: ignoring key {key}, which does not belong to the agent", path.display());
        }
        let known = CONFIG_TEXTS.iter().chain(CONFIG_OTHERS);
        for key in keys.iter().filter(|key| !known.clone().any(|known| known.eq_ignore_ascii_case(key))) {
            tracing::warn!("{}: ignoring unknown key {key}", path.display());
        }
        if !config.local_enabled && !config.remote_enabled {
            return Err(Error::NothingEnabled(path.to_owned()));
        }
        for own in config.paths().into_iter().filter(|own| !own.as_os_str().is_empty()) {
            *own = host.absolute(own);
        }
        let missing = |field| Error::Missing { path: path.to_owned(), field };
        if config.remote_enabled && config.connection_info_file.as_os_str().is_empty() {
            return Err(missing("connectionInfoFile"));
        }
        if config.local_enabled && config.local_plan_directory.as_os_str().is_empty() {
            return Err(missing("localPlanDirectory"));
        }
        if config.work_directory.as_os_str().is_empty() {
            config.work_directory = Path::new(platform.var_dir()).join("work");
        }
        if is_of_the_system(&config.work_directory) {
            return Err(Error::WorkDirectory { path: path.to_owned(), directory: config.work_directory });
        }
        if config.images_directory.as_os_str().is_empty() {
            config.images_directory = Path::new(platform.var_dir()).join("images");
        }
        Ok(config)
    }

    /// Whether the file enables debug logs. Errors are ignored here, because [`Config::load`] reports them.
    pub fn asks_for_debug(host: &dyn Host, path: &Path) -> bool {
        let found = section::read(platform::CURRENT, host, &host.absolute(path));
        found.ok().flatten().is_some_and(|(_, outer)| outer.debug)
    }

    fn paths(&mut self) -> [&mut PathBuf; 9] {
        [
            &mut self.work_directory,
            &mut self.local_plan_directory,
            &mut self.applied_plan_directory,
            &mut self.connection_info_file,
            &mut self.images_directory,
            &mut self.agent_registries_file,
            &mut self.image_credential_provider_config,
            &mut self.image_credential_provider_bin_directory,
            &mut self.interlock_directory,
        ]
    }

    /// The directory of state that survives restarts. It is next to the work directory, which is emptied.
    pub fn var_dir(&self) -> PathBuf {
        self.work_directory.parent().unwrap_or(Path::new(default_var_dir())).to_owned()
    }

    /// The maximum duration of one instruction.
    pub fn instruction_timeout(&self) -> Option<Duration> {
        match self.instruction_timeout_seconds.unwrap_or(3600) {
            0 => None,
            seconds => Some(duration::seconds(seconds)),
        }
    }
}

/// `/`, `C:\\`, or a top-level directory of the system.
fn is_of_the_system(directory: &Path) -> bool {
    let mut names = directory.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    match (names.next(), names.next()) {
        (None, _) => true,
        (Some(top), None) => OF_THE_SYSTEM.iter().any(|known| top == *known),
        _ => false,
    }
}

const OF_THE_SYSTEM: [&str; 19] = [
    "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "proc", "root", "run",
    "sbin", "srv", "sys", "tmp", "usr", "var",
];

/// The connection file, which is the response of `/v3/connect/agent`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Connection {
    /// The text of a kubeconfig.
    pub kube_config: String,
    /// The namespace of the plan secret.
    pub namespace: String,
    /// The name of the plan secret.
    pub secret_name: String,
}

impl Connection {
    /// Reads and validates the file.
    pub fn load(host: &dyn Host, path: &Path) -> Result<Self, Error> {
        let path = &host.absolute(path);
        let (connection, _): (Self, _) = read(platform::CURRENT, host, path, CONNECTION_TEXTS)?;
        for (field, value) in [
            ("kubeConfig", &connection.kube_config),
            ("namespace", &connection.namespace),
            ("secretName", &connection.secret_name),
        ] {
            if value.is_empty() {
                return Err(Error::Missing { path: path.to_owned(), field });
            }
        }
        Ok(connection)
    }
}

/// The content, and the names of all its fields.
fn read<T: DeserializeOwned>(
    platform: &dyn Platform,
    host: &dyn Host,
    path: &Path,
    texts: &[&str],
) -> Result<(T, Vec<String>), Error> {
    let text = bytes(platform, host, path)?;
    match format(path) {
        Some(Format::Json) => parsed(path, content::json(&text)),
        Some(Format::Yaml) => {
            parsed(path, content::yaml(&text).and_then(|value| content::fields(value, texts)))
        }
        None => Err(Error::Extension(path.to_owned())),
    }
}

/// The file, if no other user can read it.
fn bytes(platform: &dyn Platform, host: &dyn Host, path: &Path) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::Read { path: path.to_owned(), source };
    // A link is followed, because the permissions of the content matter.
    let stat = host.stat_target(path).map_err(unreadable)?;
    if platform.checks_modes() && stat.mode != 0o600 {
        return Err(Error::Mode { path: path.to_owned(), found: stat.mode });
    }
    let (found, expected) = ((stat.uid, stat.gid), host.identity());
    if platform.checks_modes() && found != expected {
        return Err(Error::Owner { path: path.to_owned(), found, expected });
    }
    host.read(path).map_err(unreadable)
}

enum Format {
    Json,
    Yaml,
}

/// The format by the extension, anywhere in the file name.
fn format(path: &Path) -> Option<Format> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name {
        name if name.contains(".json") => Some(Format::Json),
        name if name.contains(".yaml") || name.contains(".yml") => Some(Format::Yaml),
        _ => None,
    }
}

fn parsed<T>(path: &Path, read: Result<T, String>) -> Result<T, Error> {
    read.map_err(|message| Error::Parse { path: path.to_owned(), message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Attr, MemoryHost, testing::NoProgram};

    fn host() -> MemoryHost {
        MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram)
    }

    fn put(host: &MemoryHost, path: &str, text: &str, mode: u32, owner: (u32, u32)) {
        host.make_dirs(Path::new(path).parent().unwrap(), 0o755).unwrap();
        host.replace(Path::new(path), text.as_bytes(), Attr { mode, owner: Some(owner) }).unwrap();
    }

    #[tokio::test]
    async fn agent_check_1_wrong_mode_and_owner_are_reported() {
        let host = host();
        put(&host, "/e/config.yaml", "remoteEnabled: true\nconnectionInfoFile: /x", 0o644, (0, 0));
        let error = Config::load(&host, Path::new("/e/config.yaml")).unwrap_err().to_string();
        assert_eq!(error, "/e/config.yaml has mode 0644, but must have mode 0600");
        put(&host, "/e/config.yaml", "remoteEnabled: true\nconnectionInfoFile: /x", 0o600, (7, 8));
        let error = Config::load(&host, Path::new("/e/config.yaml")).unwrap_err().to_string();
        assert!(error.contains("owned by 7:8") && error.contains("0:0"), "{error}");
    }

    #[tokio::test]
    async fn agent_check_2_the_missing_field_is_reported() {
        let host = host();
        put(&host, "/c.json", r#"{"kubeConfig":"x","namespace":"y"} trailing"#, 0o600, (0, 0));
        let error = Connection::load(&host, Path::new("/c.json")).err().unwrap().to_string();
        assert!(error.contains("secretName"), "{error}");
        put(&host, "/c.json", "<html>", 0o600, (0, 0));
        assert!(
            Connection::load(&host, Path::new("/c.json"))
                .err()
                .unwrap()
                .to_string()
                .contains("failed to parse")
        );
        put(&host, "/c.txt", "{}", 0o600, (0, 0));
        assert!(matches!(Connection::load(&host, Path::new("/c.txt")).err(), Some(Error::Extension(_))));
    }

    #[tokio::test]
    async fn files_are_read_as_by_the_original() {
        let host = host();
        let expected = Config {
            work_directory: "/v/work".into(),
            images_directory: "/5".into(),
            remote_enabled: true,
            connection_info_file: "/c.json".into(),
            ..Config::default()
        };
        for text in [
            "workDirectory: /v/work\nimagesDirectory: 5\nremoteEnabled: true\nconnectionInfoFile: /c.json",
            "WORKDIRECTORY: /v/work\nimagesdirectory: 5\nRemoteEnabled: true\nConnectionInfoFile: /c.json\n\
             localEnabled: null\nlocalPlanDirectory:\nunknown: {a: [b]}",
            "workDirectory: /w\nworkDirectory: /v/work\nimagesDirectory: 5\nremoteEnabled: on\n\
             connectionInfoFile: /c.json\n---\nworkDirectory: /w\n--- [",
            "---\n{workDirectory: /v/work, imagesDirectory: 5, remoteEnabled: true, connectionInfoFile: /c.json}",
        ] {
            put(&host, "/config.yaml", text, 0o600, (0, 0));
            let found = Config::load(&host, Path::new("/config.yaml"));
            assert_eq!(found.map_err(|error| error.to_string()), Ok(expected.clone()), "{text}");
        }
        for (path, text) in [
            (
                "/c.json",
                r#"{"KUBECONFIG": "k", "Namespace": "x", "nameSpace": "ns", "secretname": "s", "x": null} ["#,
            ),
            ("/c.yaml", "kubeconfig: k\nnamespace: ns\nSecretName: s\n"),
        ] {
            put(&host, path, text, 0o600, (0, 0));
            let found = Connection::load(&host, Path::new(path)).map_err(|error| error.to_string()).unwrap();
            assert_eq!((&*found.kube_config, &*found.namespace, &*found.secret_name), ("k", "ns", "s"));
        }
    }

    #[tokio::test]
    async fn errors_name_the_field_without_its_value() {
        let host = host();
        for (path, text, named) in [
            ("/c.yaml", "remoteEnabled: [secret]", "/c.yaml: at .remoteEnabled: a list where true or false"),
            ("/c.yaml", "connectionInfoFile: {secret: x}", "at .connectionInfoFile: an object where a text"),
            ("/c.yaml", "instructionTimeoutSeconds: -1", "at .instructionTimeoutSeconds: "),
            ("/c.yaml", "- secret", "/c.yaml: the content: a list where an object is expected"),
            ("/c.yaml", "a: b\nsecret: [", "/c.yaml: invalid YAML at line "),
            ("/c.json", r#"{"connectionInfoFile": 5}"#, "/c.json: at .connectionInfoFile: a number"),
            ("/c.json", r#"{"remoteEnabled": "secret"}"#, "at .remoteEnabled: a text where true or false"),
            ("/c.json", "", "/c.json: the file is empty"),
        ] {
            put(&host, path, text, 0o600, (0, 0));
            let error = Config::load(&host, Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(named) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn any_number_is_accepted_as_time_limit() {
        let limit = |seconds| {
            Config { instruction_timeout_seconds: seconds, ..Config::default() }.instruction_timeout()
        };
        assert_eq!(limit(None), Some(Duration::from_secs(3600)));
        assert_eq!(limit(Some(0)), None);
        assert!(std::time::Instant::now().checked_add(limit(Some(u64::MAX)).unwrap()).is_some());
    }

    #[test]
    fn the_work_directory_must_not_be_a_system_directory() {
        let host = host();
        let load = |directory: &str| {
            let text = format!("workDirectory: {directory}\nremoteEnabled: true\nconnectionInfoFile: /c");
            put(&host, "/config.yml", &text, 0o600, (0, 0));
            Config::load(&host, Path::new("/config.yml"))
        };
        for directory in ["/", "//", "/./", "/etc", "/var/", "/usr"] {
            let shown = load(directory).unwrap_err().to_string();
            assert!(shown.contains("workDirectory must not be a system directory"), "{directory}: {shown}");
        }
        for directory in ["/w", "/var/work", "/etc/rancher/work"] {
            load(directory).unwrap();
        }
    }

    #[tokio::test]
    async fn agent_check_3_nothing_enabled_is_an_error() {
        let host = host();
        put(&host, "/config.yml", "workDirectory: /w", 0o600, (0, 0));
        assert!(matches!(Config::load(&host, Path::new("/config.yml")), Err(Error::NothingEnabled(_))));
        put(
            &host,
            "/config.yml",
            "workDirectory: /v/work\nremoteEnabled: true\nconnectionInfoFile: /c",
            0o600,
            (0, 0),
        );
        let config = Config::load(&host, Path::new("/config.yml")).unwrap();
        assert_eq!(config.var_dir(), Path::new("/v"));
        assert_eq!(config.images_directory, default_images_dir());
    }
}
