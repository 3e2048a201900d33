//! Service: defaults, and allocation of unique cluster addresses and node ports.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{child, items, items_mut, set_default};
use crate::admission::{Admission, AdmissionRequest, Operation};
use crate::object::{ObjectExt, object_mut};
use crate::objects::Objects;
use crate::resources::Resource;
use crate::status::{FieldError, Status};
use crate::storage::{Range, Storage};

pub(super) fn default_service(service: &mut Value) {
    let spec = child(service, "spec");
    set_default(spec, "type", "ClusterIP");
    set_default(spec, "sessionAffinity", "None");
    let kind = spec.top_str("type").to_owned();
    for port in items_mut(spec, "ports") {
        set_default(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_default();
        set_default(port, "targetPort", number);
    }
    if kind == "ExternalName" {
        return;
    }
    set_default(spec, "internalTrafficPolicy", "Cluster");
    set_default(spec, "ipFamilies", json!(["IPv4"]));
    set_default(spec, "ipFamilyPolicy", "SingleStack");
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        set_default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        set_default(spec, "allocateLoadBalancerNodePorts", true);
    }
}

pub(super) fn create_service(service: &mut Value) {
    set_default(child(service, "status"), "loadBalancer", json!({}));
}

/// Keeps addresses and node ports that the client omits.
pub(super) fn update_service(service: &mut Value, old: &Value, _subresource: &str) {
    let kind = service["spec"].top_str("type").to_owned();
    if kind == "ExternalName" {
        return;
    }
    let spec = child(service, "spec");
    for field in ["clusterIP", "clusterIPs"] {
        let before = old["spec"].get(field).filter(|value| !value.is_null());
        let unset = spec.get(field).is_none_or(|new| new.is_null() || new == "");
        if let Some(value) = before.filter(|_| unset) {
            object_mut(spec).insert(field.into(), value.clone());
        }
    }
    if kind == "ClusterIP" {
        return;
    }
    for port in items_mut(spec, "ports") {
        let same = |other: &&Value| {
            other.get("port") == port.get("port") && other.get("protocol") == port.get("protocol")
        };
        let before = items(&old["spec"], "ports").find(same).and_then(|port| port.get("nodePort")).cloned();
        if let Some(before) = before {
            set_default(port, "nodePort", before);
        }
    }
}

pub(super) fn validate_service(service: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &service["spec"];
    let kind = spec.top_str("type");
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer" | "ExternalName") {
        let supported = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
        errors.push(FieldError::not_supported("spec.type", &kind.into(), &supported));
    }
    let headless = spec.top_str("clusterIP") == "None";
    let ports: Vec<&Value> = items(spec, "ports").collect();
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    let mut names = HashSet::new();
    for (at, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{at}]");
        let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
        if !(1..=65535).contains(&number) {
            let why = "must be between 1 and 65535, inclusive";
            errors.push(FieldError::invalid(format!("{path}.port"), &number.into(), why));
        }
        let name = port.top_str("name");
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), &name.into()));
        }
    }
    let fixed = old.filter(|old| kind != "ExternalName" && old["spec"].top_str("type") != "ExternalName");
    if let Some(old) = fixed {
        let before = old["spec"].top_str("clusterIP");
        if !before.is_empty() && before != spec.top_str("clusterIP") {
            let why = "may not change once set";
            errors.push(FieldError::invalid("spec.clusterIPs[0]", &spec["clusterIP"], why));
        }
    }
    errors
}

/// Allocates cluster addresses and node ports of Services.
pub struct ServiceAddresses {
    // Not `Objects`, which has this hook: a reference cycle would keep both and the store alive.
    storage: Arc<dyn Storage>,
    network: (Ipv4Addr, u8),
    /// Allocated, but possibly not stored yet.
    recent: Mutex<Recent>,
}

#[derive(Default)]
struct Recent {
    addresses: HashSet<Ipv4Addr>,
    ports: HashSet<u16>,
}

/// Older allocations have certainly been stored or abandoned.
const MAX_RECENT: usize = 4096;
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

impl ServiceAddresses {
    /// Uses a network such as `10.43.0.0/16`.
    pub fn new(objects: &Objects, network: (Ipv4Addr, u8)) -> Self {
        Self { storage: objects.storage().clone(), network, recent: Mutex::default() }
    }

    fn used(&self) -> (HashSet<Ipv4Addr>, HashSet<u16>) {
        let range = Range { group: "", resource: "services", namespace: None, start: None };
        let (services, _) = self.storage.index().list(&range);
        let mut addresses = HashSet::new();
        let mut ports = HashSet::new();
        for service in services {
            let spec = service.decode()["spec"].take();
            addresses.extend(spec.top_str("clusterIP").parse::<Ipv4Addr>());
            let numbers = items(&spec, "ports").filter_map(|port| port.get("nodePort")?.as_u64());
            ports.extend(numbers.filter_map(|number| u16::try_from(number).ok()));
        }
        (addresses, ports)
    }

    fn fill(&self, service: &mut Value) -> Result<(), String> {
        let spec = child(service, "spec");
        let kind = spec.top_str("type").to_owned();
        let address = spec.top_str("clusterIP").to_owned();
        let wants_address = kind != "ExternalName" && address.is_empty();
        let wants_ports = matches!(kind.as_str(), "NodePort" | "LoadBalancer");
        if !wants_address && !wants_ports {
            if !address.is_empty() {
                set_default(spec, "clusterIPs", json!([address]));
            }
            return Ok(());
        }
        let (addresses, ports) = self.used();
        let mut recent = self.recent.lock();
        if recent.addresses.len() + recent.ports.len() > MAX_RECENT {
            *recent = Recent::default();
        }
        if wants_address {
            let free = |ip: &Ipv4Addr| !addresses.contains(ip) && !recent.addresses.contains(ip);
            let ip = self.candidates().find(free).ok_or("no cluster address is available")?;
            recent.addresses.insert(ip);
            object_mut(spec).insert("clusterIP".into(), ip.to_string().into());
        }
        let address = spec.top_str("clusterIP").to_owned();
        set_default(spec, "clusterIPs", json!([address]));
        if wants_ports {
            for port in items_mut(spec, "ports") {
                if port.get("nodePort").and_then(Value::as_u64).is_some_and(|number| number > 0) {
                    continue;
                }
                let start = rand::random_range(NODE_PORTS);
                let mut all = (start..=*NODE_PORTS.end()).chain(*NODE_PORTS.start()..start);
                let free = all.find(|port| !ports.contains(port) && !recent.ports.contains(port));
                let number = free.ok_or("no node port is available")?;
                recent.ports.insert(number);
                object_mut(port).insert("nodePort".into(), number.into());
            }
        }
        Ok(())
    }

    /// All addresses of the network, from a random one on; the first ten are reserved for well-known services.
    fn candidates(&self) -> impl Iterator<Item = Ipv4Addr> {
        let size = 1_u32 << (32 - u32::from(self.network.1.clamp(8, 30)));
        let base = u32::from(self.network.0);
        let low = if size > 64 { 11 } else { 1 };
        let high = size - 1;
        let start = rand::random_range(low..high);
        (start..high).chain(low..start).map(move |offset| Ipv4Addr::from(base + offset))
    }
}

impl Admission for ServiceAddresses {
    fn name(&self) -> &str {
        "service-addresses"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        let service = resource.def.group.is_empty() && resource.def.plural == "services";
        service && subresource.is_empty() && operation != Operation::Delete
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            self.fill(object).map_err(|why| {
                Status::internal(format!("failed to allocate for service {:?}: {why}", request.name))
            })
        })
    }
}
