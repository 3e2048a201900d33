//! The controller of RKEBootstraps, and of the hook on etcd machines.

use std::sync::Arc;
use std::time::Duration;

use drover_api::capi::v1beta2 as capi;
use drover_api::rke::v1::{self as rke, RKEBootstrap};
use drover_runtime::events::Note;
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use super::hook::{self, NodeView};
use super::objects::{self, Owners};
use super::script;
use crate::context::Context;
use crate::controlplane::planner::runtime::Runtime;
use crate::keys::{annotations, labels};
use crate::owner::owner_name;
use crate::store::{Writer, status_of};

/// Reconciles one RKEBootstrap.
pub struct Bootstraps {
    context: Context,
    writer: Writer,
}

impl Bootstraps {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), writer: Writer::new(&context.store, "bootstrap", "provider") }
    }
}

impl Reconciler for Bootstraps {
    const NAME: &'static str = "bootstrap";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let store = &self.context.store;
        let Some(bootstrap) = store.bootstraps.get(&key) else { return Ok(Next::EVENT) };
        let machine = owner_name(&bootstrap.metadata, "cluster.x-k8s.io", "Machine")
            .and_then(|name| store.machines.get(&key.sibling(name)));
        let Some(machine) = machine else { return Ok(Next::EVENT) };
        let Some(cluster) = store.capi_cluster(&key.namespace, &machine.spec.cluster_name) else {
            return self.hook(&bootstrap, &machine, None).await;
        };
        let paused = cluster.spec.paused.unwrap_or(false)
            || bootstrap
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|a| a.contains_key(annotations::capi::PAUSED));
        let provisioned = cluster
            .status
            .as_ref()
            .and_then(|status| status.initialization.as_ref()?.infrastructure_provisioned)
            .unwrap_or(false);
        if bootstrap.metadata.deletion_timestamp.is_none() && !paused && provisioned {
            self.provide(&bootstrap, &machine).await?;
        }
        self.hook(&bootstrap, &machine, Some(&cluster)).await
    }
}

impl Bootstraps {
    async fn provide(&self, bootstrap: &RKEBootstrap, machine: &capi::Machine) -> Result<(), Error> {
        let key = ObjectKey::of(bootstrap);
        let owners = Owners {
            machine: machine.metadata.name.clone().unwrap_or_default(),
            cluster: machine.spec.cluster_name.clone(),
        };
        for object in objects::plan_access(bootstrap, &owners) {
            self.writer.apply(&object).await?;
        }
        let plan = objects::plan_name(&key.name);
        let fresh = self.context.store.secrets.get(&key.sibling(&plan)).is_none();
        self.writer.apply(&objects::plan_secret(bootstrap, &owners)).await?;
        if fresh {
            let message = format!("Secret {plan} will hold the plan of the machine");
            self.context.events.tell(bootstrap, [&Note::normal("PlanSecretCreated", message)]);
        }
        let phase = machine.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let name = objects::bootstrap_name(&key.name);
        if ["Deleting", "Deleted", "Failed"].contains(&phase) || machine.metadata.deletion_timestamp.is_some()
        {
            // Nobody will use it any more, and it holds a token.
            if self.context.store.secrets.get(&key.sibling(&name)).is_some() {
                self.writer.delete("v1", "Secret", &key.sibling(&name)).await?;
                let message = format!("The machine goes; nobody needs Secret {name} and its token any more");
                self.context.events.tell(bootstrap, [&Note::normal("BootstrapSecretDeleted", message)]);
            }
            return Ok(());
        }
        if machine.spec.infrastructure_ref.kind == "CustomMachine" {
            // The server is there and has registered: nobody makes one that would run a script, and nobody needs its token.
            let text = "# This machine was brought by a person and registered itself.\n";
            self.writer.apply(&objects::bootstrap_secret(bootstrap, &owners, text)).await?;
            return self.ready(&key, name).await;
        }
        self.writer.apply(&objects::bootstrap_account(bootstrap, &owners)).await?;
        let Some(token) = self.token(&key, &name).await? else { return Ok(()) };
        let spec = self.context.store.control_planes.get(&key.sibling(&owners.cluster));
        let env = spec.as_ref().map(|cp| cp.spec.agent_env_vars.clone()).unwrap_or_default();
        let directory = spec
            .as_ref()
            .and_then(|cp| cp.spec.config.data_directories.as_ref())
            .map(|directories| directories.system_agent.clone())
            .unwrap_or_default();
        let text = script::render(&script::Input {
            settings: &self.context.settings.now(),
            agent_env_vars: &env,
            agent_var_dir: &directory,
            token: Some(&script::registration_token(&token)),
            body: &self.context.install_script,
        });
        self.writer.apply(&objects::bootstrap_secret(bootstrap, &owners, &text)).await?;
        self.ready(&key, name.clone()).await?;
        if bootstrap.status.as_ref().is_none_or(|status| status.data_secret_name.is_empty()) {
            let message =
                format!("Secret {name} holds the script that makes a server a machine of the cluster");
            self.context.events.tell(bootstrap, [&Note::normal("BootstrapSecretCreated", message)]);
        }
        Ok(())
    }

    /// Says that the Secret with the machine's bootstrap is there.
    async fn ready(&self, key: &ObjectKey, secret: String) -> Result<(), Error> {
        let status = json!({
            "dataSecretName": secret, "ready": true, "initialization": {"dataSecretCreated": true},
        });
        self.writer.apply_status(&status_of(rke::API_VERSION, "RKEBootstrap", key, status)).await.map(|_| ())
    }

    /// The account's token, once the API server has filled it in.
    async fn token(&self, key: &ObjectKey, account: &str) -> Result<Option<String>, Error> {
        let Some(found) = self.context.store.accounts.get(&key.sibling(account)) else { return Ok(None) };
        let uid = found.metadata.uid.clone().unwrap_or_default();
        let desired = objects::token_secret(&key.namespace, account, &uid, true);
        let name = desired["metadata"]["name"].as_str().unwrap_or_default();
        let secret = self.context.store.secrets.get(&key.sibling(name));
        if secret.is_none() {
            self.writer.create(&desired).await?;
        }
        Ok(secret.and_then(|secret| service_account_token(&secret)))
    }

    async fn hook(
        &self,
        bootstrap: &RKEBootstrap,
        machine: &Arc<capi::Machine>,
        cluster: Option<&capi::Cluster>,
    ) -> Result<Next, Error> {
        let notes = machine.metadata.annotations.as_ref();
        let held = notes.is_some_and(|notes| notes.contains_key(annotations::ETCD_HOOK));
        let etcd =
            machine.metadata.labels.as_ref().is_some_and(|marks| marks.contains_key(labels::ETCD_ROLE));
        // Nothing to do, and the scope is made of all machines of the cluster.
        if !held && (!etcd || machine.metadata.deletion_timestamp.is_some()) {
            return Ok(Next::EVENT);
        }
        let now = self.context.now();
        let mut scope = self.hook_scope(bootstrap, machine, cluster);
        let key = ObjectKey::of(machine.as_ref());
        let mut decision = hook::decide(&scope, now);
        let place = self.downstream_of(&key.namespace, &machine.spec.cluster_name);
        let node_name =
            machine.status.as_ref().and_then(|status| status.node_ref.as_ref()).map(|node| node.name.clone());
        if matches!(
            decision,
            hook::Decision::AskRemoval
                | hook::Decision::Hold(..)
                | hook::Decision::Release("its node is gone")
        ) && let (Some((management, runtime)), Some(node_name)) = (&place, &node_name)
            && scope.node.is_none()
            && scope.has_kubeconfig
        {
            match self.context.downstream.node(management, node_name).await {
                Ok(node) => {
                    scope.node = node.map(|node| {
                        let notes = node.metadata.annotations.unwrap_or_default();
                        let is = |suffix: &str| {
                            notes.get(&format!("etcd.{}.cattle.io/{suffix}", runtime.name())).cloned()
                        };
                        NodeView {
                            removal_asked: is("remove").as_deref() == Some("true"),
                            removed: is("removed-node-name").is_some_and(|name| !name.is_empty()),
                        }
                    });
                    decision = hook::decide(&scope, now);
                }
                Err(error) => {
                    tracing::debug!(machine = %key, %error, "cannot see whether etcd let go");
                    return Ok(Next::after(Duration::from_secs(5)));
                }
            }
        }
        let guard = |value: serde_json::Value| json!({"metadata": {"uid": machine.metadata.uid, "annotations": {annotations::ETCD_HOOK: value}}});
        match decision {
            hook::Decision::Nothing => Ok(Next::EVENT),
            hook::Decision::AddHook => {
                let patch = guard(json!(annotations::ETCD_HOOK_OWNER));
                self.writer.merge(capi::API_VERSION, "Machine", &key, patch).await?;
                Ok(Next::EVENT)
            }
            hook::Decision::Release(why) => {
                tracing::info!(machine = %key, why, "etcd machine may go");
                self.writer.merge(capi::API_VERSION, "Machine", &key, guard(json!(null))).await?;
                let message = format!("The machine may go as far as etcd is concerned: {why}");
                self.context.events.tell(machine.as_ref(), [&Note::normal("EtcdRemovalReleased", message)]);
                Ok(Next::EVENT)
            }
            hook::Decision::AskRemoval => {
                if let (Some((management, runtime)), Some(node_name)) = (place, node_name) {
                    let mark = format!("etcd.{}.cattle.io/remove", runtime.name());
                    let patch = json!({"metadata": {"annotations": {mark: "true"}}});
                    self.context
                        .downstream
                        .patch_node(&management, &node_name, patch)
                        .await
                        .map_err(Error::other("ask etcd to remove a member"))?;
                    let note =
                        Note::normal("EtcdRemovalAsked", format!("Asked etcd to let Node {node_name} go"));
                    self.context.events.tell(machine.as_ref(), [&note]);
                }
                Ok(Next::after(Duration::from_secs(5)))
            }
            hook::Decision::Hold(why, due) => {
                let note = Note::normal("EtcdRemovalHeld", why).standing();
                self.context.events.tell(machine.as_ref(), [&note]);
                Ok(due.map_or(Next::EVENT, |due| self.context.next(Some(due))))
            }
        }
    }

    fn hook_scope(
        &self,
        bootstrap: &RKEBootstrap,
        machine: &capi::Machine,
        cluster: Option<&capi::Cluster>,
    ) -> hook::Scope {
        let store = &self.context.store;
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        let name = machine.spec.cluster_name.as_str();
        let has_label =
            |m: &capi::Machine, key: &str| m.metadata.labels.as_ref().is_some_and(|l| l.contains_key(key));
        let note = |key: &str| {
            bootstrap.metadata.annotations.as_ref().and_then(|a| a.get(key)).cloned().unwrap_or_default()
        };
        let control_plane = store.control_planes.get(&ObjectKey::new(namespace, name));
        let stays = cluster.is_some_and(|cluster| cluster.metadata.deletion_timestamp.is_none())
            && control_plane.is_some_and(|cp| cp.metadata.deletion_timestamp.is_none());
        let own_plan = objects::plan_name(bootstrap.metadata.name.as_deref().unwrap_or_default());
        let plans = store.secrets.by_label(labels::CLUSTER_NAME, namespace, name);
        let annotation = |secret: &Secret, key: &str| {
            secret.metadata.annotations.as_ref().and_then(|a| a.get(key)).cloned().unwrap_or_default()
        };
        let (own, others): (Vec<_>, Vec<_>) =
            plans.iter().partition(|secret| secret.metadata.name.as_deref() == Some(own_plan.as_str()));
        let machines = store.machines.by_label(labels::capi::CLUSTER_NAME, namespace, name);
        let other_etcd: Vec<_> = machines
            .iter()
            .filter(|other| has_label(other, labels::ETCD_ROLE) && other.metadata.uid != machine.metadata.uid)
            .collect();
        let leaving = other_etcd.iter().filter(|other| other.metadata.deletion_timestamp.is_some()).count();
        hook::Scope {
            etcd: has_label(machine, labels::ETCD_ROLE),
            hook_present: machine
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|a| a.contains_key(annotations::ETCD_HOOK)),
            deleting_since: machine.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            force: note(annotations::ETCD_FORCE_REMOVE) == "true",
            cluster_stays: stays,
            has_kubeconfig: store
                .secrets
                .get(&ObjectKey::new(namespace, crate::init::kubeconfig::secret_name(name)))
                .is_some(),
            node: None,
            has_node_ref: machine.status.as_ref().is_some_and(|status| status.node_ref.is_some()),
            join_url: own.first().map(|secret| annotation(secret, annotations::JOIN_URL)).unwrap_or_default(),
            joined_to: others.iter().map(|secret| annotation(secret, annotations::JOINED_TO)).collect(),
            other_etcd: other_etcd.len() - leaving,
            other_etcd_deleting: leaving,
        }
    }

    fn downstream_of(&self, namespace: &str, cluster: &str) -> Option<(String, Runtime)> {
        let control_plane = self.context.store.control_planes.get(&ObjectKey::new(namespace, cluster))?;
        let runtime = Runtime::of_version(&control_plane.spec.kubernetes_version);
        Some((control_plane.spec.management_cluster_name.clone(), runtime))
    }
}

/// The token in a token secret, once it is there.
pub fn service_account_token(secret: &Secret) -> Option<String> {
    let token = secret.data.as_ref()?.get("token")?;
    String::from_utf8(token.0.clone()).ok().filter(|token| !token.is_empty())
}
