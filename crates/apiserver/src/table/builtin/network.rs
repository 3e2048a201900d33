//! Services, endpoints and ingresses.

use jiff::Timestamp;
use serde_json::Value;

use super::{BuiltIn, age, at, define, labels, list, number, or_none, text};
use crate::object::ObjectExt;

pub(super) fn printers() -> Vec<BuiltIn> {
    vec![
        define("", "Service", "Name,Type,Cluster-IP,External-IP,Port(s),Age,Selector*", service),
        define("", "Endpoints", "Name,Endpoints,Age", endpoints),
        define("discovery.k8s.io", "EndpointSlice", "Name,AddressType,Ports,Endpoints,Age", slice),
        define("networking.k8s.io", "Ingress", "Name,Class,Hosts,Address,Ports,Age", ingress),
        define("networking.k8s.io", "NetworkPolicy", "Name,Pod-Selector,Age", |o, now| {
            vec![o.name().into(), super::selector(at(o, &["spec", "podSelector"])), age(o, now)]
        }),
    ]
}

fn service(service: &Value, now: Timestamp) -> Vec<Value> {
    let address = match list(service, &["spec", "clusterIPs"]).first().and_then(Value::as_str) {
        Some(first) => first,
        None => text(service, &["spec", "clusterIP"]),
    };
    vec![
        service.name().into(),
        text(service, &["spec", "type"]).into(),
        or_none(address),
        external(service),
        or_none(&ports(service)),
        age(service, now),
        labels(at(service, &["spec", "selector"])),
    ]
}

fn external(service: &Value) -> Value {
    let ips = list(service, &["spec", "externalIPs"]).iter().filter_map(Value::as_str);
    match text(service, &["spec", "type"]) {
        "LoadBalancer" => {
            let balancers =
                list(service, &["status", "loadBalancer", "ingress"]).iter().map(|i| match i.top_str("ip") {
                    "" => i.top_str("hostname"),
                    ip => ip,
                });
            let all: Vec<_> = balancers.filter(|a| !a.is_empty()).chain(ips).collect();
            if all.is_empty() { "<pending>".into() } else { all.join(",").into() }
        }
        "ExternalName" => text(service, &["spec", "externalName"]).into(),
        _ => or_none(&ips.collect::<Vec<_>>().join(",")),
    }
}

fn ports(service: &Value) -> String {
    let ports = list(service, &["spec", "ports"]).iter().map(|port| {
        let (number_, protocol) = (number(port, &["port"]), port.top_str("protocol"));
        match number(port, &["nodePort"]) {
            0 => format!("{number_}/{protocol}"),
            node_port => format!("{number_}:{node_port}/{protocol}"),
        }
    });
    ports.collect::<Vec<_>>().join(",")
}

/// The first three, and the number of the others.
fn first_three(all: &[String]) -> String {
    match all.len() {
        0 => "<none>".to_owned(),
        n if n > 3 => format!("{} + {} more...", all[..3].join(","), n - 3),
        _ => all.join(","),
    }
}

fn endpoints(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in list(object, &["subsets"]) {
        let ports = list(subset, &["ports"]);
        for address in list(subset, &["addresses"]) {
            let ip = address.top_str("ip");
            if ports.is_empty() {
                all.push(ip.to_owned());
            }
            all.extend(ports.iter().map(|p| match ip.contains(':') {
                true => format!("[{ip}]:{}", number(p, &["port"])),
                false => format!("{ip}:{}", number(p, &["port"])),
            }));
        }
    }
    vec![object.name().into(), first_three(&all).into(), age(object, now)]
}

fn slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<_> = list(object, &["ports"])
        .iter()
        .map(|p| match number(p, &["port"]) {
            0 => "*".to_owned(),
            port => port.to_string(),
        })
        .collect();
    let addresses: Vec<_> = list(object, &["endpoints"])
        .iter()
        .flat_map(|e| list(e, &["addresses"]))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let unset = |all: &[String]| if all.is_empty() { "<unset>".to_owned() } else { first_three(all) };
    vec![
        object.name().into(),
        object.top_str("addressType").into(),
        unset(&ports).into(),
        unset(&addresses).into(),
        age(object, now),
    ]
}

fn ingress(object: &Value, now: Timestamp) -> Vec<Value> {
    let hosts: Vec<_> = list(object, &["spec", "rules"])
        .iter()
        .map(|r| r.top_str("host").to_owned())
        .filter(|h| !h.is_empty())
        .collect();
    let hosts = if hosts.is_empty() { "*".to_owned() } else { first_three(&hosts) };
    let addresses: Vec<_> = list(object, &["status", "loadBalancer", "ingress"])
        .iter()
        .map(|i| if i.top_str("ip").is_empty() { i.top_str("hostname") } else { i.top_str("ip") })
        .collect();
    let ports = if list(object, &["spec", "tls"]).is_empty() { "80" } else { "80, 443" };
    vec![
        object.name().into(),
        or_none(text(object, &["spec", "ingressClassName"])),
        hosts.into(),
        addresses.join(",").into(),
        ports.into(),
        age(object, now),
    ]
}
