//! The agent's two files: its configuration and its connection to the management plane.
//!
//! Both hold or lead to a credential, so on Linux they must be readable by nobody but the agent. On Windows the
//! configuration is a section of the file of the service that the original lives in.

mod content;
mod section;

use std::{
    io,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    host::Host,
    platform::{self, Platform},
    span,
};

/// Where the configuration lies unless `CATTLE_AGENT_CONFIG` says otherwise.
pub fn default_path() -> &'static str {
    platform::CURRENT.config_path()
}
/// Where the agent keeps its things unless the configuration says otherwise.
pub fn default_var_dir() -> &'static str {
    platform::CURRENT.var_dir()
}
/// Where image tarballs lie unless the configuration says otherwise.
pub fn default_images_dir() -> PathBuf {
    Path::new(default_var_dir()).join("images")
}

/// Why a file of the agent was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be looked at.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could read the file.
    #[error("{path} has mode {found:04o}, but must have mode 0600")]
    Mode {
        /// Which file.
        path: PathBuf,
        /// Its mode.
        found: u32,
    },
    /// The file is someone else's.
    #[error("{path} is owned by {}:{}, but must be owned by {}:{} (0600, uid:gid of the agent)",
        found.0, found.1, expected.0, expected.1)]
    Owner {
        /// Which file.
        path: PathBuf,
        /// Its uid and gid.
        found: (u32, u32),
        /// The agent's.
        expected: (u32, u32),
    },
    /// The name says neither JSON nor YAML.
    #[error("{0}: the file name must contain .json, .yaml or .yml")]
    Extension(PathBuf),
    /// The content is not what the name says.
    #[error("cannot parse {path}: {message}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// A field that must be there is empty.
    #[error("{path}: field {field} is missing or empty")]
    Missing {
        /// Which file.
        path: PathBuf,
        /// Which field.
        field: &'static str,
    },
    /// The scratch space would be the system itself.
    #[error(
        "{path}: workDirectory must be a directory of its own, because it is emptied before every plan, but it is \
         {directory}"
    )]
    WorkDirectory {
        /// Which file.
        path: PathBuf,
        /// What it says.
        directory: PathBuf,
    },
    /// The agent would have nothing to do.
    #[error("{0}: neither localEnabled nor remoteEnabled is true; the agent would have nothing to do")]
    NothingEnabled(PathBuf),
}

/// `config.yaml`, with the original's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Config {
    /// Scratch space of instructions; emptied before each pass.
    pub work_directory: PathBuf,
    /// Watch a directory for plans.
    pub local_enabled: bool,
    /// That directory.
    pub local_plan_directory: PathBuf,
    /// Copies of the plans applied last; empty for none.
    pub applied_plan_directory: PathBuf,
    /// Watch the plan secret.
    pub remote_enabled: bool,
    /// The connection file.
    pub connection_info_file: PathBuf,
    /// Do not empty the scratch space.
    pub preserve_work_directory: bool,
    /// Image tarballs.
    pub images_directory: PathBuf,
    /// registries.yaml of the agent.
    pub agent_registries_file: PathBuf,
    /// Configuration of credential provider plugins.
    pub image_credential_provider_config: PathBuf,
    /// Folder of credential provider plugins.
    pub image_credential_provider_bin_directory: PathBuf,
    /// Where installer and agent tell each other to wait; empty for nowhere.
    pub interlock_directory: PathBuf,
    /// Ours: ask the server of the connection file for images, after the mirrors and before the registry of the name.
    pub images_from_server: bool,
    /// Ours: stay this program, whichever agent the manager offers.
    pub pin_agent: bool,
    /// Ours: how long one instruction may run; 0 for ever. Default one hour.
    pub instruction_timeout_seconds: Option<u64>,
    /// Trust only the authority in the connection file; said beside the section, where there is one.
    #[serde(skip)]
    pub strict: bool,
}

/// Its fields that hold a text.
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
    /// Reads and checks the file.
    pub fn load(host: &dyn Host, path: &Path) -> Result<Self, Error> {
        Self::load_on(platform::CURRENT, host, path)
    }

    /// Reads and checks the file as the agent of a platform does.
    pub fn load_on(platform: &dyn Platform, host: &dyn Host, path: &Path) -> Result<Self, Error> {
        let path = &host.absolute(path);
        let ((mut config, keys), beside) = match section::read(platform, host, path)? {
            Some((own, beside)) => (parsed(path, content::fields::<Self>(own, CONFIG_TEXTS))?, beside),
            None => (read::<Self>(platform, host, path, CONFIG_TEXTS)?, section::Beside::default()),
        };
        config.strict = beside.strict;
        for key in beside.others {
            tracing::warn!("{}: key {key} is not for the agent and is ignored", path.display());
        }
        let known = CONFIG_TEXTS.iter().chain(CONFIG_OTHERS);
        for key in keys.iter().filter(|key| !known.clone().any(|known| known.eq_ignore_ascii_case(key))) {
            tracing::warn!("{}: unknown key {key} is ignored", path.display());
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

    /// Whether the file asks for more in the log. What is wrong with it is told by [`Config::load`], in that log.
    pub fn asks_for_debug(host: &dyn Host, path: &Path) -> bool {
        let found = section::read(platform::CURRENT, host, &host.absolute(path));
        found.ok().flatten().is_some_and(|(_, beside)| beside.debug)
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

    /// Where what must survive a restart lies: beside the scratch space, never in it.
    pub fn var_dir(&self) -> PathBuf {
        self.work_directory.parent().unwrap_or(Path::new(default_var_dir())).to_owned()
    }

    /// The limit for one instruction.
    pub fn instruction_timeout(&self) -> Option<Duration> {
        match self.instruction_timeout_seconds.unwrap_or(3600) {
            0 => None,
            seconds => Some(span::seconds(seconds)),
        }
    }
}

/// `/`, `C:\\`, or one of the directories that every system has.
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

/// The connection file, as `/v3/connect/agent` answers.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Connection {
    /// Text of a kubeconfig.
    pub kube_config: String,
    /// Namespace of the plan secret.
    pub namespace: String,
    /// Name of the plan secret.
    pub secret_name: String,
}

impl Connection {
    /// Reads and checks the file.
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

/// The content, and the names of all fields in it.
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

/// The file, if nobody else can read it.
fn bytes(platform: &dyn Platform, host: &dyn Host, path: &Path) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::Read { path: path.to_owned(), source };
    // A link may lead to it: what counts is who can read the content.
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

/// What the file's name says, anywhere in it.
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
    async fn agent_check_1_mode_and_owner_are_named() {
        let host = host();
        put(&host, "/e/config.yaml", "remoteEnabled: true\nconnectionInfoFile: /x", 0o644, (0, 0));
        let error = Config::load(&host, Path::new("/e/config.yaml")).unwrap_err().to_string();
        assert_eq!(error, "/e/config.yaml has mode 0644, but must have mode 0600");
        put(&host, "/e/config.yaml", "remoteEnabled: true\nconnectionInfoFile: /x", 0o600, (7, 8));
        let error = Config::load(&host, Path::new("/e/config.yaml")).unwrap_err().to_string();
        assert!(error.contains("owned by 7:8") && error.contains("0:0"), "{error}");
    }

    #[tokio::test]
    async fn agent_check_2_the_missing_field_is_named() {
        let host = host();
        put(&host, "/c.json", r#"{"kubeConfig":"x","namespace":"y"} trailing"#, 0o600, (0, 0));
        let error = Connection::load(&host, Path::new("/c.json")).err().unwrap().to_string();
        assert!(error.contains("secretName"), "{error}");
        put(&host, "/c.json", "<html>", 0o600, (0, 0));
        assert!(
            Connection::load(&host, Path::new("/c.json")).err().unwrap().to_string().contains("cannot parse")
        );
        put(&host, "/c.txt", "{}", 0o600, (0, 0));
        assert!(matches!(Connection::load(&host, Path::new("/c.txt")).err(), Some(Error::Extension(_))));
    }

    #[tokio::test]
    async fn what_the_original_reads_is_read() {
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
    async fn what_cannot_be_read_is_named_and_not_repeated() {
        let host = host();
        for (path, text, named) in [
            ("/c.yaml", "remoteEnabled: [secret]", "/c.yaml: at .remoteEnabled: a list where true or false"),
            ("/c.yaml", "connectionInfoFile: {secret: x}", "at .connectionInfoFile: an object where a text"),
            ("/c.yaml", "instructionTimeoutSeconds: -1", "at .instructionTimeoutSeconds: "),
            ("/c.yaml", "- secret", "/c.yaml: the content: a list where an object is expected"),
            ("/c.yaml", "a: b\nsecret: [", "/c.yaml: not valid YAML at line "),
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
    fn a_time_limit_may_be_any_number() {
        let limit = |seconds| {
            Config { instruction_timeout_seconds: seconds, ..Config::default() }.instruction_timeout()
        };
        assert_eq!(limit(None), Some(Duration::from_secs(3600)));
        assert_eq!(limit(Some(0)), None);
        assert!(std::time::Instant::now().checked_add(limit(Some(u64::MAX)).unwrap()).is_some());
    }

    #[test]
    fn what_is_emptied_before_every_plan_is_not_the_system_itself() {
        let host = host();
        let load = |directory: &str| {
            let text = format!("workDirectory: {directory}\nremoteEnabled: true\nconnectionInfoFile: /c");
            put(&host, "/config.yml", &text, 0o600, (0, 0));
            Config::load(&host, Path::new("/config.yml"))
        };
        for directory in ["/", "//", "/./", "/etc", "/var/", "/usr"] {
            let told = load(directory).unwrap_err().to_string();
            assert!(told.contains("workDirectory must be a directory of its own"), "{directory}: {told}");
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
