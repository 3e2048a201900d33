//! The controllers that give a store of objects the behaviour of a cluster: garbage collection, namespaces, service
//! accounts, roles, expiry of events.
//!
//! Each is a task that follows the commit log ([`follow`]), reads only committed state, writes through [`Objects`], and
//! writes nothing unless something changes. Each is optional. They have no state of their own, so they resume after a
//! restart at any point.

mod event_ttl;
mod follow;
mod gc;
mod kubernetes_service;
pub mod namespace;
mod retry;
pub mod roles;
mod service_accounts;
mod token_secrets;

pub use kubernetes_service::{KubernetesService, ensure_service};

use crate::objects::Objects;
use crate::restart::restart_after_panic;
use crate::status::Status;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use namespace::NamespaceLifecycle;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Which controllers run.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// Garbage collection by owner references.
    pub garbage_collection: bool,
    /// System namespaces, admission by namespace, deletion of namespaces.
    pub namespaces: bool,
    /// ServiceAccount `default` in each namespace, and deletion of token Secrets with their account.
    pub service_accounts: bool,
    /// Content of `kube-root-ca.crt` in each namespace (only with `service_accounts`).
    pub root_ca: Option<String>,
    /// Bootstrap roles and aggregation.
    pub roles: bool,
    /// How long events are kept; `None` keeps them forever.
    pub event_ttl: Option<SignedDuration>,
    /// `default/kubernetes`.
    pub kubernetes_service: Option<KubernetesService>,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            garbage_collection: true,
            namespaces: true,
            service_accounts: true,
            root_ca: None,
            roles: true,
            event_ttl: Some(SignedDuration::from_hours(1)),
            kubernetes_service: None,
        }
    }
}

/// The running controllers; they stop when this is dropped.
#[derive(Debug)]
pub struct Controllers {
    tasks: JoinSet<()>,
}

impl Controllers {
    /// Creates the objects that must exist before the first request, then starts the controllers.
    pub async fn start(objects: &Objects, options: ControllerOptions) -> Result<Self, Status> {
        let mut tasks = JoinSet::new();
        let mut keep = |name, begin: Box<dyn Fn(Objects) -> BoxFuture<'static, ()> + Send>| {
            let objects = objects.clone();
            tasks.spawn(restart_after_panic(name, move || begin(objects.clone())));
        };
        if options.namespaces {
            objects.add_admission(Arc::new(NamespaceLifecycle::new(objects.storage().clone())));
            namespace::ensure_system(objects).await?;
        }
        if options.roles {
            roles::ensure_bootstrap(objects).await?;
            keep("roles", Box::new(|objects| roles::run(objects).boxed()));
        }
        if let Some(service) = options.kubernetes_service {
            ensure_service(objects, &service).await?;
            keep(
                "kubernetes-service",
                Box::new(move |objects| kubernetes_service::run(objects, service.clone()).boxed()),
            );
        }
        if options.service_accounts {
            keep(
                "service-accounts",
                Box::new(move |objects| service_accounts::run(objects, options.root_ca.clone()).boxed()),
            );
            keep("token-secrets", Box::new(|objects| token_secrets::run(objects).boxed()));
        }
        if options.namespaces {
            keep("namespaces", Box::new(|objects| namespace::run(objects).boxed()));
        }
        if options.garbage_collection {
            keep("garbage-collection", Box::new(|objects| gc::run(objects).boxed()));
        }
        if let Some(ttl) = options.event_ttl {
            keep("event-ttl", Box::new(move |objects| event_ttl::run(objects, ttl).boxed()));
        }
        Ok(Self { tasks })
    }

    /// Stops the controllers and waits until they have stopped. A step in progress is cancelled between two writes; the
    /// next start resumes it.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}
