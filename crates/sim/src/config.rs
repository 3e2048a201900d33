//! The configuration of a node: `config.yaml`, then `config.yaml.d/*.yaml` in order, then flags.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::Error;
use crate::paths::Paths;

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Agent,
}

/// The merged configuration. All keys are kept, and available with [`Config::get`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    values: BTreeMap<String, Value>,
}

impl Config {
    /// Reads the files below `root` and merges `flags` (`--key=value`, `--key value`, `--switch`) into them.
    pub fn load(root: &Path, flags: &[String]) -> Result<Self, Error> {
        let dir = Paths::config_dir(root);
        let mut config = Self::default();
        let mut files = vec![dir.join("config.yaml")];
        let mut more: Vec<_> = std::fs::read_dir(dir.join("config.yaml.d"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        more.retain(|path: &std::path::PathBuf| {
            path.extension().is_some_and(|e| e == "yaml" || e == "yml") && !path.ends_with(".")
        });
        more.sort();
        files.append(&mut more);
        for path in files.into_iter().filter(|path| path.exists()) {
            let text = crate::read(&path)?;
            let parsed: BTreeMap<String, Value> = if text.trim().is_empty() {
                BTreeMap::new()
            } else {
                serde_saphyr::from_str(&text)
                    .map_err(|e| Error::Config { path: path.clone(), why: e.to_string() })?
            };
            config.merge(parsed);
        }
        config.merge(parse_flags(flags)?);
        Ok(config)
    }

    /// Later values override earlier ones. The value of a key that ends in `+` is appended.
    fn merge(&mut self, values: BTreeMap<String, Value>) {
        for (key, value) in values {
            match key.strip_suffix('+') {
                Some(key) => {
                    let list = self.values.entry(key.to_owned()).or_insert(Value::Array(vec![]));
                    let mut all = std::mem::take(list).as_array().cloned().unwrap_or_default();
                    match value {
                        Value::Array(more) => all.extend(more),
                        one => all.push(one),
                    }
                    *list = Value::Array(all);
                }
                None => {
                    self.values.insert(key, value);
                }
            }
        }
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A single value as a string. An empty value counts as absent.
    pub fn text(&self, key: &str) -> Option<String> {
        let text = match self.values.get(key)? {
            Value::String(text) => text.clone(),
            Value::Array(list) => list.first().map(scalar)?,
            other => scalar(other),
        };
        (!text.is_empty()).then_some(text)
    }

    /// All values of a key that can be repeated.
    pub fn list(&self, key: &str) -> Vec<String> {
        match self.values.get(key) {
            None | Some(Value::Null) => vec![],
            Some(Value::Array(list)) => list.iter().map(scalar).collect(),
            Some(one) => vec![scalar(one)],
        }
    }

    pub fn flag(&self, key: &str) -> bool {
        matches!(self.text(key).as_deref(), Some("true"))
    }

    pub fn data_dir(&self) -> String {
        self.text("data-dir").unwrap_or_else(|| "/var/lib/rancher/k3s".into())
    }

    /// The value of `name` in `<component>-arg`.
    pub fn component_arg(&self, component: &str, name: &str) -> Option<String> {
        let args = self.list(&format!("{component}-arg"));
        let found = args.iter().rev().find_map(|arg| arg.split_once('=').filter(|(key, _)| *key == name));
        found.map(|(_, value)| value.to_owned())
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn parse_flags(flags: &[String]) -> Result<BTreeMap<String, Value>, Error> {
    let mut values: BTreeMap<String, Value> = BTreeMap::new();
    let mut rest = flags.iter().peekable();
    while let Some(flag) = rest.next() {
        let Some(flag) = flag.strip_prefix("--") else {
            return Err(Error::Invalid(format!("unexpected argument {flag:?}: flags must start with --")));
        };
        let (key, value) = match flag.split_once('=') {
            Some((key, value)) => (key, value.to_owned()),
            None => match rest.next_if(|next| !next.starts_with("--")) {
                Some(value) => (flag, value.clone()),
                None => (flag, "true".to_owned()),
            },
        };
        match values.get_mut(key) {
            None => {
                values.insert(key.to_owned(), Value::String(value));
            }
            Some(Value::Array(list)) => list.push(Value::String(value)),
            Some(one) => *one = Value::Array(vec![one.clone(), Value::String(value)]),
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_merged_in_order_and_flags_override_them() {
        let root = tempfile::tempdir().unwrap();
        let dir = Paths::config_dir(root.path()).join("config.yaml.d");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("../config.yaml"), "token: a\nnode-label: [x=1]\n").unwrap();
        std::fs::write(
            dir.join("50-rancher.yaml"),
            r#"{"token": "b", "node-name": "n", "node-label+": ["y=2"]}"#,
        )
        .unwrap();
        std::fs::write(dir.join("60.yaml"), "kube-scheduler-arg:\n- secure-port=10259\n- cert-dir=/c\n")
            .unwrap();
        std::fs::write(dir.join("ignored.txt"), "token: never").unwrap();
        let flags = ["--node-name=flag", "--debug", "--tls-san", "a", "--tls-san=b"].map(String::from);
        let config = Config::load(root.path(), &flags).unwrap();
        assert_eq!(config.text("token").as_deref(), Some("b"));
        assert_eq!(config.text("node-name").as_deref(), Some("flag"));
        assert_eq!(config.list("node-label"), ["x=1", "y=2"]);
        assert_eq!(config.list("tls-san"), ["a", "b"]);
        assert!(config.flag("debug") && !config.flag("cluster-init"));
        assert_eq!(config.component_arg("kube-scheduler", "cert-dir").as_deref(), Some("/c"));
    }

    #[test]
    fn error_names_the_invalid_file() {
        let root = tempfile::tempdir().unwrap();
        let dir = Paths::config_dir(root.path());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("config.yaml"), "a: [").unwrap();
        let error = Config::load(root.path(), &[]).unwrap_err();
        assert!(error.to_string().contains("config.yaml"), "{error}");
    }
}
