//! A machine as the store keeps it: `config.json` with the original's field names, and the files beside it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::driver::{Addresses, DriverState};

/// `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostConfig {
    /// Always 3.
    pub config_version: u32,
    /// The driver's state with the fields that every driver has.
    pub driver: DriverState,
    /// Which driver made it.
    pub driver_name: String,
    /// How it was asked for.
    pub host_options: HostOptions,
    /// Its name.
    pub name: String,
}

/// How a machine was asked for. Credentials are never among this.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostOptions {
    /// Always empty; readers expect it.
    pub driver: String,
    /// Always 0; readers expect it.
    pub memory: i64,
    /// Always 0; readers expect it.
    pub disk: i64,
    /// Path of the install script in the process that created the machine.
    pub custom_install_script: String,
    /// The host name, if it differs from the name.
    pub hostname_override: String,
    /// `linux`.
    #[serde(rename = "MachineOS")]
    pub machine_os: String,
    /// Null with an install script.
    pub engine_options: Value,
    /// Null with an install script.
    pub swarm_options: Value,
    /// Null with an install script.
    pub auth_options: Value,
}

/// A machine as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// `config.json`.
    pub config: HostConfig,
    /// Files beside it, by name: `id_rsa`, `id_rsa.pub`.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Host {
    /// A machine that is wanted and does not exist yet. `store_path` is where readers expect the store to have been.
    pub fn new(name: &str, driver: &str, store_path: &str, options: HostOptions) -> Host {
        let state = json!({
            "IPAddress": "",
            "IPv6Address": "",
            "MachineName": name,
            "SSHUser": "root",
            "SSHPort": 22,
            "SSHKeyPath": format!("{store_path}/machines/{name}/id_rsa"),
            "StorePath": store_path,
            "SwarmMaster": false,
            "SwarmHost": "",
            "SwarmDiscovery": "",
        });
        let config = HostConfig {
            config_version: 3,
            driver: state.as_object().cloned().unwrap_or_default(),
            driver_name: driver.to_owned(),
            host_options: options,
            name: name.to_owned(),
        };
        Host { config, files: BTreeMap::new() }
    }

    /// Writes the addresses where readers look for them.
    pub fn set_addresses(&mut self, addresses: &Addresses) {
        for (key, address) in [
            ("IPAddress", addresses.external),
            ("PrivateIPAddress", addresses.internal),
            ("IPv6Address", addresses.ipv6),
        ] {
            if let Some(address) = address {
                self.config.driver.insert(key.to_owned(), address.to_string().into());
            }
        }
    }

    /// A text of the driver's state; empty if it has none.
    pub fn driver_text(&self, key: &str) -> &str {
        self.config.driver.get(key).and_then(Value::as_str).unwrap_or("")
    }

    /// The files of the machine's directory, `config.json` among them (four spaces of indent, as the original has it).
    pub fn to_files(&self) -> Result<BTreeMap<String, Vec<u8>>, serde_json::Error> {
        let mut text = Vec::new();
        let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
        self.config.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter))?;
        let mut files = self.files.clone();
        files.insert("config.json".to_owned(), text);
        Ok(files)
    }

    /// The reverse of [`Host::to_files`]; `None` without `config.json`.
    pub fn from_files(mut files: BTreeMap<String, Vec<u8>>) -> Result<Option<Host>, serde_json::Error> {
        let Some(text) = files.remove("config.json") else { return Ok(None) };
        Ok(Some(Host { config: serde_json::from_slice(&text)?, files }))
    }
}
