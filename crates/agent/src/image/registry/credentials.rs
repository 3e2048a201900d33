//! The Docker configuration file: the fallback for registries without credentials in registries.yaml.

use std::path::Path;

use serde::Deserialize;

use drover_image::is_docker_hub;

use super::registries::Auth;
use crate::host::Host;

#[derive(Deserialize, Default)]
#[serde(default)]
struct File {
    auths: std::collections::BTreeMap<String, Entry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

/// The credentials for a host in `$HOME/.docker/config.json`; none if HOME is not set, as for most services.
pub(super) fn of_docker(host: &dyn Host, registry: &str) -> Option<Auth> {
    let env = host.env();
    let home = env.iter().rev().find(|(name, value)| name == "HOME" && !value.is_empty())?;
    let text = host.read(&Path::new(&home.1).join(".docker/config.json")).ok()?;
    find(&text, registry)
}

fn find(text: &[u8], registry: &str) -> Option<Auth> {
    let file: File = serde_json::from_slice(text).ok()?;
    let hub = is_docker_hub(registry);
    let entry = file.auths.iter().find_map(|(name, entry)| {
        let bare = name.trim_start_matches("https://").trim_start_matches("http://");
        let bare = bare.split('/').next().unwrap_or_default();
        (bare == registry || hub && is_docker_hub(bare)).then_some(entry)
    })?;
    let mut auth = if entry.auth.is_empty() {
        Auth { username: entry.username.clone(), password: entry.password.clone(), ..Auth::default() }
    } else {
        Auth::decode(&entry.auth)?
    };
    auth.identity_token.clone_from(&entry.identitytoken);
    (auth != Auth::default()).then_some(auth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_host() {
        let text = br#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"r.x:5000":{"username":"a","password":"b"},"e.x":{}}}"#;
        assert_eq!(find(text, "index.docker.io").unwrap().password, "p");
        assert_eq!(find(text, "r.x:5000").unwrap().username, "a");
        assert!(find(text, "r.x").is_none() && find(text, "e.x").is_none() && find(b"no", "e.x").is_none());
    }
}
