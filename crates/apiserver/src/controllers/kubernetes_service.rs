//! `default/kubernetes`: the Service and EndpointSlice with which clients inside the cluster find this server.

use super::follow::{Change, Follower, Topics};
use super::retry::Retries;
use crate::auth::fields::put;
use crate::objects::{Objects, UpdateOptions, WriteContext};
use crate::status::Status;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};

/// The addresses of the server.
#[derive(Clone, Debug)]
pub struct KubernetesService {
    /// The address at which clients reach the server.
    pub advertise: SocketAddr,
    /// `spec.clusterIP`.
    pub cluster_ip: IpAddr,
}

/// Creates or corrects both objects; writes nothing if they are correct.
pub async fn ensure_service(objects: &Objects, service: &KubernetesService) -> Result<(), Status> {
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let port = service.advertise.port();
    let spec = json!({
        "type": "ClusterIP", "clusterIP": service.cluster_ip.to_string(),
        "clusterIPs": [service.cluster_ip.to_string()], "internalTrafficPolicy": "Cluster",
        "ipFamilies": [family(service.cluster_ip)], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
        "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
    });
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels}, "spec": spec,
    });
    ensure(objects, ("", "services"), object, &["spec"]).await?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": family(service.advertise.ip()),
        "endpoints": [{"addresses": [service.advertise.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    });
    ensure(objects, ("discovery.k8s.io", "endpointslices"), slice, &["endpoints", "ports"]).await
}

/// Restores both objects when they are changed or deleted, until the task is dropped.
pub(super) async fn run(objects: Objects, service: KubernetesService) {
    let topics = Topics::Some(&[("", "services"), ("discovery.k8s.io", "endpointslices")]);
    let mut follower = Follower::new(objects.storage().clone(), topics);
    let mut retries: Retries<()> = Retries::default();
    loop {
        let is_affected = tokio::select! {
            changes = follower.next() => changes.iter().any(is_ours),
            () = retries.due() => !retries.take_due().is_empty(),
        };
        if !is_affected {
            continue;
        }
        match ensure_service(&objects, &service).await {
            Ok(()) => retries.succeeded(&()),
            Err(error) => {
                tracing::warn!(%error, "failed to update the kubernetes service; will retry");
                retries.failed(());
            }
        }
    }
}

fn is_ours(change: &Change) -> bool {
    match change {
        Change::Reset => false,
        Change::Present(v) | Change::Gone(v) => {
            v.key().namespace() == "default" && v.key().name() == "kubernetes"
        }
    }
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

async fn ensure(
    objects: &Objects,
    (group, plural): (&str, &str),
    wanted: Value,
    fields: &[&str],
) -> Result<(), Status> {
    let Some(resource) = objects.resources().resource(group, "v1", plural) else { return Ok(()) };
    let context = WriteContext::internal("kube-apiserver");
    if objects.get(&resource, "default", "kubernetes").is_err() {
        return match objects.create(&context, &resource, "default", wanted).await {
            Err(status) if !status.is_already_exists() => Err(status),
            _ => Ok(()),
        };
    }
    let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
    let change = |old: Option<&Value>| {
        let mut object = old.cloned().unwrap_or_default();
        for field in fields {
            put(&mut object, &[field], wanted[field].clone());
        }
        Ok(object)
    };
    objects.update(&context, &resource, "default", "kubernetes", options, change).await.map(drop)
}
