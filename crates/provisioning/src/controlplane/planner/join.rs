//! Where machines join: the URL each server offers, and the one each worker takes.

use std::net::IpAddr;

use drover_plan::keys;
use serde_json::Value;

use super::entry::Entry;
use super::runtime::Runtime;

/// The supervisor URL of a server, once CAPI has seen its Node. Of several addresses the last internal one
/// wins, as in the original.
pub fn offered_url(entry: &Entry, runtime: Runtime) -> Option<String> {
    if !entry.is_server() {
        return None;
    }
    if entry.is_only_etcd() && entry.is_init_node() {
        return etcd_only_url(entry, runtime);
    }
    entry.machine.kubelet_version.as_ref()?;
    let address = entry.machine.internal_ips.last().or(entry.machine.external_ips.last())?;
    Some(url(address, runtime))
}

/// `https://<address>:<supervisor port>`, brackets around IPv6.
pub fn url(address: &str, runtime: Runtime) -> String {
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) => format!("https://[{v6}]:{}", runtime.supervisor_port()),
        _ => format!("https://{address}:{}", runtime.supervisor_port()),
    }
}

/// An etcd-only init node serves no Kubernetes API, so no Node tells its address; it reports it through two
/// periodic instructions: the member list, and its own name in it.
fn etcd_only_url(entry: &Entry, runtime: Runtime) -> Option<String> {
    let output = |name: &str| entry.node.periodic_output.get(name).map(|output| output.stdout.as_slice());
    let own_name = String::from_utf8_lossy(output("etcd-name")?).trim().to_owned();
    let info = String::from_utf8_lossy(output("capture-address")?).into_owned();
    let members = info.lines().rev().find_map(|line| {
        let value: Value = serde_json::from_str(line.trim()).ok()?;
        value.get("members").cloned()
    })?;
    let member = members.as_array()?.iter().find(|member| member["name"].as_str() == Some(&own_name))?;
    let client_url = member["clientURLs"].as_array()?.first()?.as_str()?;
    let host = client_url.strip_prefix("https://").or(client_url.strip_prefix("http://"))?;
    let address = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next()?,
        None => host.split(':').next()?,
    };
    is_host(address).then(|| url(address, runtime))
}

/// An address or a name, and not whatever else a machine may say.
fn is_host(text: &str) -> bool {
    let is_name = |part: &str| {
        (1..=63).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.parse::<IpAddr>().is_ok() || (text.len() <= 253 && text.split('.').all(is_name))
}

/// Why an init node has no URL yet, if it is its own report that cannot be used; else empty.
pub fn missing_url(entry: &Entry) -> String {
    if !(entry.is_only_etcd() && entry.is_init_node()) {
        return String::new();
    }
    let key = keys::APPLIED_PERIODIC_OUTPUT;
    let told = |name: &str| entry.node.periodic_output.contains_key(name);
    entry.garbage(&[key]).unwrap_or_else(|| match told("etcd-name") && told("capture-address") {
        true => format!(
            "key {key} of its plan secret tells no address: etcd-name and capture-address must name one member of etcd \
             and its client URL; look at rancher-system-agent on Machine {}",
            entry.name()
        ),
        false => String::new(),
    })
}

/// The URL a worker joins: the one it has while its server still stands, else one chosen by the Machine's
/// UID, so that workers spread over the servers and the choice survives a restart of the manager. None while there is no
/// server to join.
pub fn worker_url(entry: &Entry, entries: &[Entry]) -> Option<String> {
    let current = entry.joined_to();
    let still_served = entries.iter().any(|other| {
        !other.is_deleting()
            && (other.is_control_plane() || other.is_init_node())
            && other.join_url() == current
    });
    if !current.is_empty() && still_served {
        return Some(current.to_owned());
    }
    let servers: Vec<&Entry> = entries
        .iter()
        .filter(|other| other.is_control_plane() && !other.is_deleting() && !other.join_url().is_empty())
        .collect();
    if servers.is_empty() {
        return None;
    }
    let index = spread(entry.machine.uid.as_bytes(), servers.len());
    Some(servers[index].join_url().to_owned())
}

fn spread(key: &[u8], count: usize) -> usize {
    let mut sum = crc32_ieee(key);
    if sum == u32::MAX {
        sum -= 1;
    }
    (u64::from(sum) * count as u64 / u64::from(u32::MAX)) as usize
}

fn crc32_ieee(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_plane_check_6_and_7_ports_and_brackets() {
        assert_eq!(url("10.0.0.1", Runtime::K3s), "https://10.0.0.1:6443");
        assert_eq!(url("10.0.0.1", Runtime::Rke2), "https://10.0.0.1:9345");
        assert_eq!(url("fd00::1", Runtime::K3s), "https://[fd00::1]:6443");
    }

    #[test]
    fn checksum_is_the_ieee_one_and_spreads_within_bounds() {
        assert_eq!(crc32_ieee(b"123456789"), 0xcbf4_3926);
        for count in 1..8 {
            for key in [&b""[..], b"a", b"11111111-2222"] {
                assert!(spread(key, count) < count);
            }
        }
    }
}
