//! A configuration that is a section of another program's file.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Error, bytes, content, format, parsed};
use crate::{
    host::Host,
    platform::{Platform, Section},
};

/// Settings for the agent outside of its section.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OuterSettings {
    /// Trust only the CA in the connection file.
    pub(super) strict: bool,
    /// Enable debug logs.
    pub(super) debug: bool,
    /// Other keys, which do not belong to the agent.
    pub(super) others: Vec<String>,
}

/// The agent's section, if the platform has one and the file contains it. A file without the section belongs to the
/// agent alone if its name says so.
pub(super) fn read(
    platform: &dyn Platform,
    host: &dyn Host,
    path: &Path,
) -> Result<Option<(Value, OuterSettings)>, Error> {
    let Some(section) = platform.section() else { return Ok(None) };
    let document = parsed(path, content::yaml(&bytes(platform, host, path)?));
    match (document, format(path)) {
        (Ok(Value::Object(fields)), _) if find(&fields, section.name).is_some() => {
            parsed(path, take(section, &fields)).map(Some)
        }
        (_, Some(_)) => Ok(None),
        (Ok(_), None) => Err(Error::Missing { path: path.to_owned(), field: section.name }),
        (Err(error), None) => Err(error),
    }
}

fn take(section: &Section, fields: &Map<String, Value>) -> Result<(Value, OuterSettings), String> {
    let switch = |name: &str| match find(fields, name) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        // An error, because a wrong guess could trust more than configured.
        Some(_) => Err(format!("at .{name}: expected true or false")),
    };
    let known = [section.name, section.strict, section.debug];
    let is_known = |key: &str| known.iter().any(|name| name.eq_ignore_ascii_case(key));
    let outer = OuterSettings {
        strict: switch(section.strict)?,
        debug: switch(section.debug)?,
        others: fields.keys().filter(|key| !is_known(key)).cloned().collect(),
    };
    Ok((find(fields, section.name).cloned().unwrap_or_default(), outer))
}

/// Case-insensitive as in Go; `null` means unset.
fn find<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let mut found = fields.iter().filter(|(key, value)| key.eq_ignore_ascii_case(name) && !value.is_null());
    found.next_back().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        host::{Attr, MemoryHost, testing::NoProgram},
        platform::{Linux, Windows},
    };

    /// A host with one file, readable by everyone.
    fn host(platform: &dyn Platform, path: &str, text: &str) -> MemoryHost {
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram);
        let at = host.absolute(Path::new(path));
        host.make_dirs(at.parent().unwrap(), 0o755).unwrap();
        let mode = if platform.checks_modes() { 0o600 } else { 0o644 };
        host.replace(&at, text.as_bytes(), Attr { mode, owner: Some((0, 0)) }).unwrap();
        host
    }

    fn load(platform: &dyn Platform, path: &str, text: &str) -> Result<Config, Error> {
        Config::load_on(platform, &host(platform, path, text), Path::new(path))
    }

    fn wins(text: &str) -> Result<Config, Error> {
        load(&Windows, Windows.config_path(), text)
    }

    /// Written like the installer on Windows does.
    const WINS: &str = "\u{feff}\r\n\
        white_list:\r\n  processPaths:\r\n    - C:/etc/rancher/wins/powershell.exe\r\n\
        agentStrictTLSMode: true\r\n\
        systemagent:\r\n  workDirectory: C:/var/lib/rancher/agent/work\r\n  remoteEnabled: true\r\n  \
        localEnabled: false\r\n  connectionInfoFile: C:/var/lib/rancher/agent/rancher2_connection_info.json\r\n  \
        colour: blue\r\n\
        csi-proxy:\r\n  url: https://x\r\n";

    #[tokio::test]
    async fn on_windows_the_configuration_is_a_section_of_the_service_file() {
        let config = wins(WINS).unwrap();
        assert!(config.remote_enabled && !config.local_enabled && config.strict);
        let connection = Path::new("/C:/var/lib/rancher/agent/rancher2_connection_info.json");
        assert_eq!(config.connection_info_file, connection, "absolute, as this test's machine sees it");
        assert_eq!(config.images_directory, Path::new("C:/var/lib/rancher/agent/images"));
        assert!(!wins("systemagent: {localEnabled: true, localPlanDirectory: /p}").unwrap().strict);

        let of = |text| {
            let at = host(&Windows, Windows.config_path(), text);
            read(&Windows, &at, &at.absolute(Path::new(Windows.config_path()))).unwrap().unwrap().1
        };
        let found = of(WINS);
        let mut others = found.others;
        others.sort();
        assert_eq!((found.debug, others), (false, vec!["csi-proxy".into(), "white_list".into()]));
        assert!(of("Debug: true\nSystemAgent: {}").debug);
    }

    #[tokio::test]
    async fn a_missing_section_and_invalid_booleans_are_reported_by_name() {
        for text in ["debug: true", "systemagent:\ndebug: true", "- 1", ""] {
            let error = wins(text).unwrap_err().to_string();
            assert!(error.contains("systemagent") && error.contains("wins/config"), "{text:?}: {error}");
        }
        let error = wins("systemagent: {}").unwrap_err();
        assert!(matches!(error, Error::NothingEnabled(_)), "{error}");
        let error = wins("agentStrictTLSMode: maybe\nsystemagent: {localEnabled: true}").unwrap_err();
        assert!(error.to_string().contains("agentStrictTLSMode"), "{error}");
    }

    #[tokio::test]
    async fn a_separate_file_works_on_every_platform_and_a_section_only_on_windows() {
        let own = "localEnabled: true\nlocalPlanDirectory: /p";
        assert!(load(&Windows, "C:/x/config.yaml", own).unwrap().local_enabled);
        assert!(load(&Linux, "/x/config.yaml", own).unwrap().local_enabled);
        assert!(load(&Windows, "C:/x/wins.yaml", WINS).unwrap().remote_enabled);
        assert!(matches!(load(&Linux, "/x/config.yaml", WINS), Err(Error::NothingEnabled(_))));
        assert!(matches!(load(&Linux, "/x/config", own), Err(Error::Extension(_))));
    }
}
