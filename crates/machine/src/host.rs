//! A machine in the store: `config.json` with the field names of rancher-machine, and the files in the same directory.

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
    /// The driver's state, including the fields that all drivers have.
    pub driver: DriverState,
    /// The driver that created it.
    pub driver_name: String,
    /// The options it was created with.
    pub host_options: HostOptions,
    /// Its name.
    pub name: String,
}

/// The options a machine was created with. They never contain credentials.
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

/// A machine in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// `config.json`.
    pub config: HostConfig,
    /// Files in the same directory, by name: `id_rsa`, `id_rsa.pub`.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Host {
    /// A machine that does not exist yet. `store_path` is the path of the store that is written into the state.
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

    /// Writes the addresses into the fields that readers of the state use.
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

    /// A string field of the driver's state; empty if it does not exist.
    pub fn driver_text(&self, key: &str) -> &str {
        self.config.driver.get(key).and_then(Value::as_str).unwrap_or("")
    }

    /// The files of the machine's directory, including `config.json` (indented by four spaces, as in rancher-machine).
    pub fn to_files(&self) -> Result<BTreeMap<String, Vec<u8>>, serde_json::Error> {
        let mut text = Vec::new();
        let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
        self.config.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter))?;
        let mut files = self.files.clone();
        files.insert("config.json".to_owned(), text);
        Ok(files)
    }

    /// The inverse of [`Host::to_files`]. Returns `None` if there is no `config.json`.
    pub fn from_files(mut files: BTreeMap<String, Vec<u8>>) -> Result<Option<Host>, serde_json::Error> {
        let Some(text) = files.remove("config.json") else { return Ok(None) };
        Ok(Some(Host { config: serde_json::from_slice(&text)?, files }))
    }
}
