//! `registries.yaml`: mirrors, rewrites, credentials and TLS options of registries, in the format of K3s and RKE2.

use std::{collections::BTreeMap, path::PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use regex_lite::Regex;
use serde_json::{Map, Value};

use super::{Endpoint, Origin};
use drover_image::{DOCKER_HUB, Reference, is_docker_hub, is_repository};

/// The content of the file.
#[derive(Default)]
pub struct Registries {
    mirrors: BTreeMap<String, Mirror>,
    configs: BTreeMap<String, HostConfig>,
    /// Entries that are ignored, with the reason: an invalid entry must not disable the other registries.
    pub warnings: Vec<String>,
}

#[derive(Default)]
struct Mirror {
    endpoints: Vec<crate::http::Url>,
    rewrites: Vec<(Regex, String)>,
}

/// How to connect to a host.
#[derive(Clone, Default)]
pub struct HostConfig {
    /// The credentials.
    pub auth: Option<Auth>,
    /// The TLS options.
    pub tls: Tls,
}

/// Credentials. No `Debug`, so that they cannot get into a log.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Auth {
    /// For Basic authentication.
    pub username: String,
    /// For Basic authentication.
    pub password: String,
    /// An OAuth 2 refresh token.
    pub identity_token: String,
}

impl Auth {
    /// Decodes `auth`, which is base64 of `username:password`.
    pub fn decode(auth: &str) -> Option<Self> {
        let bytes = STANDARD.decode(auth.trim()).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (username, password) = text.split_once(':')?;
        let password = password.trim_end_matches('\0');
        Some(Self { username: username.to_owned(), password: password.to_owned(), ..Self::default() })
    }

    /// The value of an Authorization header.
    pub fn basic(&self) -> Option<String> {
        (!self.username.is_empty())
            .then(|| format!("Basic {}", STANDARD.encode(format!("{}:{}", self.username, self.password))))
    }
}

/// TLS options, with paths on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// CAs to trust in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The client certificate.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// Do not verify the server.
    pub insecure_skip_verify: bool,
}

impl Registries {
    /// Parses the file. Errors name the field, but never contain a value, because the file contains passwords.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|_| "not valid UTF-8".to_owned())?;
        let value: Value = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_saphyr::from_str(text).map_err(|_| "invalid YAML".to_owned())?
        };
        let mut out = Self::default();
        let root = object(&value, "the file")?;
        for (name, value) in object(root.get("mirrors").unwrap_or(&Value::Null), "mirrors")? {
            let field = format!("mirrors.\"{name}\"");
            let mirror = out.mirror(object(value, &field)?, &field)?;
            out.mirrors.insert(name.to_ascii_lowercase(), mirror);
        }
        for (name, value) in object(root.get("configs").unwrap_or(&Value::Null), "configs")? {
            let field = format!("configs.\"{name}\"");
            let config = HostConfig::read(object(value, &field)?, &field)?;
            out.configs.insert(name.to_ascii_lowercase(), config);
        }
        Ok(out)
    }

    fn mirror(&mut self, from: &Map<String, Value>, field: &str) -> Result<Mirror, String> {
        let mut mirror = Mirror::default();
        match from.get("endpoint") {
            None | Some(Value::Null) => {}
            Some(Value::Array(endpoints)) => {
                for endpoint in endpoints {
                    let text = scalar(endpoint, &format!("{field}.endpoint"))?;
                    match Endpoint::url(&text) {
                        Some(url) => mirror.endpoints.push(url),
                        None => self.warnings.push(format!("{field}.endpoint: {text:?} is not a URL")),
                    }
                }
            }
            Some(_) => return Err(format!("{field}.endpoint must be a list of URLs")),
        }
        let rewrites = format!("{field}.rewrite");
        for (pattern, replacement) in object(from.get("rewrite").unwrap_or(&Value::Null), &rewrites)? {
            let replacement = scalar(replacement, &rewrites)?;
            match Regex::new(pattern) {
                Ok(regex) => mirror.rewrites.push((regex, replacement)),
                Err(error) => self.warnings.push(format!("{rewrites}: {pattern:?}: {error}")),
            }
        }
        Ok(mirror)
    }

    /// The endpoints of an image, in order: the mirrors, `before_the_name`, and the registry in the image's name.
    pub fn endpoints(&self, image: &Reference, before_the_name: Option<Endpoint>) -> Vec<Endpoint> {
        let mut found = Vec::new();
        let namespace = image.namespace();
        if let Some(mirror) = self.mirror_of(&image.registry) {
            let rewritten = mirror.rewritten(&image.repository);
            for url in &mirror.endpoints {
                let config = self.config(&url.authority());
                let is_itself = url.authority() == image.registry && url.path == "/v2";
                found.push(Endpoint {
                    url: url.clone(),
                    repository: if is_itself { image.repository.clone() } else { rewritten.clone() },
                    ns: (!is_itself).then(|| namespace.to_owned()),
                    origin: Origin::Mirror,
                    auth: config.auth,
                    tls: config.tls,
                });
            }
        }
        found.extend(before_the_name);
        if let Some(url) = Endpoint::url(&image.registry) {
            let config = self.config(&url.authority());
            found.push(Endpoint {
                url,
                repository: image.repository.clone(),
                ns: None,
                origin: Origin::Name,
                auth: config.auth,
                tls: config.tls,
            });
        }
        found
    }

    fn mirror_of(&self, registry: &str) -> Option<&Mirror> {
        let mut keys = vec![registry.to_ascii_lowercase()];
        if registry == DOCKER_HUB {
            keys.push("docker.io".into());
        } else if !has_port(registry) {
            keys.extend([format!("{}:443", keys[0]), format!("{}:80", keys[0])]);
        }
        keys.push("*".into());
        keys.iter().find_map(|key| self.mirrors.get(key))
    }

    /// The options for a host, given as in a URL: with the port unless it is the default port.
    pub fn config(&self, host: &str) -> HostConfig {
        let mut keys = vec![host.to_ascii_lowercase()];
        if !has_port(host) {
            keys.extend([format!("{}:443", keys[0]), format!("{}:80", keys[0])]);
        }
        if is_docker_hub(host) {
            keys.push("docker.io".into());
        }
        keys.push("*".into());
        keys.iter().find_map(|key| self.configs.get(key)).cloned().unwrap_or_default()
    }
}

impl Mirror {
    /// Applies the first pattern that changes it into a valid repository. Patterns are tried in alphabetical order, so
    /// that the same file always has the same result.
    fn rewritten(&self, repository: &str) -> String {
        let candidates =
            self.rewrites.iter().map(|(pattern, with)| pattern.replace_all(repository, with.as_str()));
        candidates
            .into_iter()
            .find(|new| new != repository && is_repository(new))
            .map_or_else(|| repository.to_owned(), |new| new.into_owned())
    }
}

impl HostConfig {
    fn read(from: &Map<String, Value>, field: &str) -> Result<Self, String> {
        let auth_field = format!("{field}.auth");
        let auth = object(from.get("auth").unwrap_or(&Value::Null), &auth_field)?;
        let get = |from: &Map<String, Value>, field: &str, name: &str| match from.get(name) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(value) => scalar(value, &format!("{field}.{name}")),
        };
        let mut credential = Auth {
            username: get(auth, &auth_field, "username")?,
            password: get(auth, &auth_field, "password")?,
            identity_token: get(auth, &auth_field, "identity_token")?,
        };
        let encoded = get(auth, &auth_field, "auth")?;
        if credential.username.is_empty() && !encoded.is_empty() {
            let token = credential.identity_token;
            credential = Auth::decode(&encoded)
                .ok_or_else(|| format!("{auth_field}.auth must be base64 of username:password"))?;
            credential.identity_token = token;
        }
        let tls_field = format!("{field}.tls");
        let tls = object(from.get("tls").unwrap_or(&Value::Null), &tls_field)?;
        let file = |name: &str| {
            get(tls, &tls_field, name).map(|path| (!path.is_empty()).then(|| PathBuf::from(path)))
        };
        let tls = Tls {
            ca_file: file("ca_file")?,
            cert_file: file("cert_file")?,
            key_file: file("key_file")?,
            insecure_skip_verify: match tls.get("insecure_skip_verify") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(skip)) => *skip,
                Some(_) => return Err(format!("{tls_field}.insecure_skip_verify must be true or false")),
            },
        };
        if tls.cert_file.is_some() != tls.key_file.is_some() {
            return Err(format!("{tls_field}: cert_file and key_file must be set together"));
        }
        Ok(Self { auth: (credential != Auth::default()).then_some(credential), tls })
    }
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn object<'a>(value: &'a Value, field: &str) -> Result<&'a Map<String, Value>, String> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    match value {
        Value::Object(object) => Ok(object),
        Value::Null => Ok(&EMPTY),
        _ => Err(format!("{field} must be a map")),
    }
}

/// Text, also if YAML parses it as a number.
fn scalar(value: &Value, field: &str) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(value) => Ok(value.to_string()),
        _ => Err(format!("{field} must be text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str, image: &str) -> Vec<String> {
        let registries = Registries::parse(text.as_bytes()).unwrap();
        let image = Reference::parse(image).unwrap();
        let show = |endpoint: &Endpoint| {
            let ns = endpoint.ns.as_ref().map(|ns| format!(" ns={ns}")).unwrap_or_default();
            format!("{endpoint}{ns}")
        };
        registries.endpoints(&image, None).iter().map(show).collect()
    }

    #[test]
    fn agent_check_32_mirrors_are_first_and_the_images_registry_is_last() {
        let text = "mirrors:\n  docker.io:\n    endpoint: [\"https://m.example.com:5000\", localhost:5001, harbor.x/v2/hub]\n    \
                    rewrite:\n      \"^rancher/(.*)\": \"mirrored/$1\"\n      \"(broken\": x\n";
        assert_eq!(
            show(text, "rancher/x-k3s:v1"),
            [
                "https://m.example.com:5000/v2/mirrored/x-k3s ns=docker.io",
                "http://localhost:5001/v2/mirrored/x-k3s ns=docker.io",
                "https://harbor.x/v2/hub/mirrored/x-k3s ns=docker.io",
                "https://index.docker.io/v2/rancher/x-k3s",
            ]
        );
        assert_eq!(Registries::parse(text.as_bytes()).unwrap().warnings.len(), 1);
        assert_eq!(show(text, "r.x/a:1"), ["https://r.x/v2/a"]);
    }

    #[test]
    fn the_first_matching_key_is_used() {
        let text = |name: &str| {
            format!("{{mirrors: {{\"{name}\": {{endpoint: [m.x]}}, '*': {{endpoint: [star.x]}}}}}}")
        };
        for (name, image, first) in [
            ("r.x", "r.x/a", "https://m.x/v2/a ns=r.x"),
            ("r.x:443", "r.x/a", "https://m.x/v2/a ns=r.x"),
            ("r.x:80", "r.x/a", "https://m.x/v2/a ns=r.x"),
            ("r.x:444", "r.x/a", "https://star.x/v2/a ns=r.x"),
            ("index.docker.io", "a", "https://m.x/v2/library/a ns=docker.io"),
            ("other", "r.x/a", "https://star.x/v2/a ns=r.x"),
        ] {
            assert_eq!(show(&text(name), image)[0], first, "{name}");
        }
        // The key matches but has no endpoint: the wildcard is not used.
        assert_eq!(show("{mirrors: {r.x: , '*': {endpoint: [star.x]}}}", "r.x/a"), ["https://r.x/v2/a"]);
    }

    #[test]
    fn credentials_and_tls_options_are_found_by_host() {
        let text = "configs:\n  m.x:5000: {auth: {username: u, password: 123}, tls: {ca_file: /ca, insecure_skip_verify: true}}\n  \
                    docker.io: {auth: {auth: dTpw}}\n  \"*\": {auth: {identity_token: t}}\n";
        let registries = Registries::parse(text.as_bytes()).unwrap();
        let config = registries.config("m.x:5000");
        assert_eq!(config.auth.unwrap().basic().unwrap(), "Basic dToxMjM=");
        assert!(config.tls.insecure_skip_verify && config.tls.ca_file.is_some());
        assert_eq!(registries.config("index.docker.io").auth.unwrap().password, "p");
        assert_eq!(registries.config("other").auth.unwrap().identity_token, "t");
    }

    #[test]
    fn errors_name_the_field_without_its_value() {
        for (text, expected) in [
            ("mirrors: [a]", "mirrors must be a map"),
            ("mirrors: {a: {endpoint: secret}}", "mirrors.\"a\".endpoint must be a list of URLs"),
            ("configs: {a: {auth: {password: [secret]}}}", "configs.\"a\".auth.password must be text"),
            (
                "configs: {a: {auth: {auth: '!secret'}}}",
                "configs.\"a\".auth.auth must be base64 of username:password",
            ),
            (
                "configs: {a: {tls: {cert_file: /x}}}",
                "configs.\"a\".tls: cert_file and key_file must be set together",
            ),
            (
                "configs: {a: {tls: {insecure_skip_verify: secret}}}",
                "configs.\"a\".tls.insecure_skip_verify must be true or false",
            ),
            ("{secret", "invalid YAML"),
        ] {
            let error = Registries::parse(text.as_bytes()).err().unwrap();
            assert_eq!(error, expected);
            assert!(!error.contains("secret"));
        }
        assert!(Registries::parse(b"").unwrap().configs.is_empty());
    }
}
