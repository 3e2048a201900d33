//! A machine's addresses: what a person said at registration, else what its driver saved.

use std::io::Read;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

/// What is known of a machine's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    pub external: Vec<String>,
    pub internal: Vec<String>,
    pub ipv6: Option<String>,
    pub driver: String,
}

/// Upper bound on what is unpacked; a state archive holds a few keys and a JSON file.
const LIMIT: u64 = 4 << 20;

/// Comma-separated addresses of an annotation.
pub fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Reads the machine store that the driver saved; none while it holds no machine yet.
pub fn from_state_secret(secret: &Secret) -> Option<Addresses> {
    let packed = secret.data.as_ref()?.get("extractedConfig")?;
    let archive = flate2::read::GzDecoder::new(packed.0.as_slice()).take(LIMIT);
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries().ok()? {
        let mut entry = entry.ok()?;
        let path = entry.path().ok()?.to_string_lossy().into_owned();
        if !(format!("/{path}").contains("/machines/") && path.ends_with("/config.json")) {
            continue;
        }
        let mut text = String::new();
        entry.read_to_string(&mut text).ok()?;
        return from_config(&serde_json::from_str(&text).ok()?);
    }
    None
}

fn from_config(config: &Value) -> Option<Addresses> {
    let driver = config.get("Driver")?;
    let text = |key: &str| {
        driver.get(key).and_then(Value::as_str).filter(|value| !value.is_empty()).map(str::to_owned)
    };
    Some(Addresses {
        external: text("IPAddress").into_iter().collect(),
        internal: text("PrivateIPAddress").into_iter().collect(),
        ipv6: text("IPv6Address"),
        driver: config.get("DriverName").and_then(Value::as_str).unwrap_or_default().to_owned(),
    })
}

/// `node-ip` and `node-external-ip`.
pub struct NodeAddresses {
    pub node_ip: Vec<String>,
    pub external_ip: Vec<String>,
}

/// Orders and filters: internal addresses (with the IPv6 one) are the node's, the family of the first service
/// CIDR first; external ones are what remains.
pub fn node_addresses(known: &Addresses, first_service_cidr: Option<&str>) -> NodeAddresses {
    let mut node_ip: Vec<String> = Vec::new();
    if known.driver != "pod" {
        let internal = match (&known.internal[..], known.driver.as_str()) {
            ([], "digitalocean") => &known.external,
            _ => &known.internal,
        };
        for address in internal.iter().chain(known.ipv6.iter()) {
            if !node_ip.contains(address) {
                node_ip.push(address.clone());
            }
        }
    }
    let v6_first = first_service_cidr.is_some_and(|cidr| cidr.contains(':'));
    node_ip.sort_by_key(|address| address.contains(':') != v6_first);
    let external_ip = known
        .external
        .iter()
        .filter(|address| !node_ip.contains(address) && !is_link_local(address))
        .cloned()
        .collect();
    NodeAddresses { node_ip, external_ip }
}

fn is_link_local(address: &str) -> bool {
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => v4.is_link_local(),
        Ok(IpAddr::V6(v6)) => v6.is_unicast_link_local(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    #[test]
    fn a_saved_machine_store_gives_its_addresses() {
        let json =
            br#"{"DriverName":"local","Driver":{"IPAddress":"10.1.0.5","PrivateIPAddress":"10.1.0.5"}}"#;
        let mut builder =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        let mut header = tar::Header::new_gnu();
        header.set_size(json.len() as u64);
        header.set_mode(0o600);
        header.set_cksum();
        builder.append_data(&mut header, "root/.docker/machine/machines/m1/config.json", &json[..]).unwrap();
        let packed = builder.into_inner().unwrap().finish().unwrap();
        let secret = Secret {
            data: Some([("extractedConfig".to_owned(), ByteString(packed))].into()),
            ..Secret::default()
        };
        let addresses = from_state_secret(&secret).unwrap();
        assert_eq!((addresses.driver.as_str(), addresses.external.len()), ("local", 1));
        let node = node_addresses(&addresses, None);
        assert_eq!((node.node_ip, node.external_ip), (vec!["10.1.0.5".to_owned()], vec![]));
        assert_eq!(from_state_secret(&Secret::default()), None);
    }

    #[test]
    fn families_follow_the_first_service_cidr() {
        let known = Addresses {
            internal: vec!["10.0.0.1".into()],
            ipv6: Some("fd00::1".into()),
            external: vec!["10.0.0.1".into(), "1.2.3.4".into(), "169.254.0.1".into()],
            driver: "local".into(),
        };
        let node = node_addresses(&known, Some("fd00:43::/112"));
        assert_eq!(node.node_ip, ["fd00::1", "10.0.0.1"]);
        assert_eq!(node.external_ip, ["1.2.3.4"]);
        assert_eq!(node_addresses(&known, Some("10.43.0.0/16")).node_ip, ["10.0.0.1", "fd00::1"]);
    }
}
