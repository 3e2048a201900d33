//! Whether a server that a person brought becomes a machine: what its token allows, and whether it is known already.

use std::sync::Arc;

use drover_api::capi::v1beta2::Machine;
use drover_runtime::{Error, ObjectKey};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::controlplane::observe::text;
use crate::keys::{annotations, labels};
use crate::machine::custom::registered;
use crate::machine::unmanaged::{HEADERS, name_of};
use crate::registration::bearer::Registration;
use crate::registration::check;
use crate::registration::connect::{Call, Connect};
use crate::registration::credential::is_repeat;
use crate::registration::roles::Roles;
use crate::registration::terms::{self, Claim, MACHINES, Refusal};

/// How often a write of a limited token's list is retried after a conflict.
const CLAIM_TRIES: usize = 50;

/// What becomes of a call.
pub(super) enum Admitted {
    /// With the place that a new machine holds until it has its credential.
    Machine(Arc<Machine>, Option<OwnedSemaphorePermit>),
    Refused(Refusal),
    /// Not ready in time; ask again.
    Pending(&'static str),
}

fn refuse(status: u16, why: impl Into<String>) -> Admitted {
    Admitted::Refused(Refusal { status, why: why.into() })
}

impl Connect {
    /// The Machine of such a server, made if it is new.
    pub(super) async fn admit(
        &self,
        call: &Call,
        registration: &Registration,
        id: &str,
        deadline: Instant,
    ) -> Result<Admitted, Error> {
        if terms::is_expired(&registration.secret, &call.bearer, self.context.now()) {
            return Ok(refuse(
                401,
                "the registration token has expired: print a new command with `drover get registration-command`",
            ));
        }
        if let Some(why) = check::problem(&call.headers) {
            return Ok(refuse(400, why));
        }
        let asked = Roles::of_request(&call.headers);
        let terms = match terms::of_secret(&registration.secret) {
            Ok(terms) => terms,
            Err(refusal) => return Ok(Admitted::Refused(refusal)),
        };
        let unscoped = self.context.settings.now().registration_unscoped_tokens;
        if let Some(refusal) = terms.refusal(asked, unscoped) {
            return Ok(Admitted::Refused(refusal));
        }
        let (machine, place) = match registered(&self.context.store, &registration.management, id) {
            Some(machine) => (machine, None),
            None => {
                let Some(place) = self.queues.enter(&registration.management, deadline).await else {
                    return Ok(Admitted::Pending("many machines register at once"));
                };
                if let Some(limit) = terms.limit
                    && let Some(refused) = self.claim(registration, &name_of("custom-", id), limit).await?
                {
                    return Ok(refused);
                }
                match self.new_machine(call, registration, id, deadline).await? {
                    Some(machine) => (machine, Some(place)),
                    None => return Ok(Admitted::Pending("the machine is still being registered")),
                }
            }
        };
        if machine.metadata.deletion_timestamp.is_some() {
            return Ok(Admitted::Pending(
                "the Machine of this id is being deleted; it registers again when that is done",
            ));
        }
        let has = Roles::of_labels(machine.labels());
        if has != asked {
            return Ok(refuse(
                409,
                format!(
                    "the machine is registered as {} with the role {has}, and asks for {asked} now: roles of a registered \
                     machine cannot be changed. Run the command with {}, or delete the Machine first",
                    machine.name_any(),
                    has.flags()
                ),
            ));
        }
        Ok(Admitted::Machine(machine, place))
    }

    /// Why a call without proof does not get the credential of this Machine. One that was just made for it is its own.
    pub(super) fn without_proof(
        &self,
        machine: &Machine,
        registration: &Registration,
        id: &str,
    ) -> Option<Refusal> {
        let repeat = is_repeat(machine, &registration.token, self.has_reported(machine), self.context.now());
        (!repeat).then(|| Refusal {
            status: 409,
            why: format!(
                "the machine id {id} is registered as Machine {}, and the call does not prove that it comes from that \
                 machine. If this is that machine, run the command where the agent's rancher2_connection_info.json is still \
                 there, or delete the Machine first; if this is another one, for example a copy of its disk, uninstall the \
                 agent here and remove the file cattle-id",
                machine.name_any()
            ),
        })
    }

    /// Why a bootstrap token is not taken from a second server: the first one works already.
    pub(super) fn other_server(&self, machine: &Machine, id: &str) -> Option<Refusal> {
        let other = machine.labels().get(labels::MACHINE_ID).is_some_and(|noted| noted != id);
        (other && self.has_reported(machine)).then(|| Refusal {
            status: 409,
            why: format!(
                "another server is registered as Machine {} already: delete the Machine, its pool replaces it",
                machine.name_any()
            ),
        })
    }

    /// Adds a machine to the list of a limited token. After a conflict the list is read again, so that two calls cannot take
    /// the last place.
    async fn claim(
        &self,
        registration: &Registration,
        machine: &str,
        limit: usize,
    ) -> Result<Option<Admitted>, Error> {
        let key = ObjectKey::of(registration.secret.as_ref());
        let mut secret = registration.secret.clone();
        for _ in 0..CLAIM_TRIES {
            let list = text(&secret, MACHINES).unwrap_or_default();
            match terms::claim(&list, machine, limit) {
                Claim::Known => return Ok(None),
                Claim::Full => {
                    let machines = if limit == 1 { "machine" } else { "machines" };
                    return Ok(Some(refuse(
                        403,
                        format!(
                            "the token was made for {limit} {machines} and has registered that many: print a new command \
                             with `drover get registration-command`"
                        ),
                    )));
                }
                Claim::Listed(list) => {
                    let mut next = Secret::clone(&secret);
                    next.data
                        .get_or_insert_default()
                        .insert(MACHINES.to_owned(), ByteString(list.into_bytes()));
                    match self.writer.put_secret(&next).await {
                        Ok(()) => return Ok(None),
                        Err(error) if error.is_conflict() => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            // The cache may not contain the conflicting write yet.
            let Some(live) = self.writer.get(&key).await? else { break };
            secret = Arc::new(live);
        }
        Ok(Some(Admitted::Pending("the token is used by many machines at once")))
    }

    /// Asks for the Machine of a new server; none when it is not there in time.
    async fn new_machine(
        &self,
        call: &Call,
        registration: &Registration,
        id: &str,
        deadline: Instant,
    ) -> Result<Option<Arc<Machine>>, Error> {
        let store = &self.context.store;
        let key = ObjectKey::new(&registration.management, name_of("custom-", id));
        // Nothing else of the call is kept, least of all a credential.
        let headers: serde_json::Map<_, _> = HEADERS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), json!(call.headers.get(*name)?))))
            .collect();
        let note = (annotations::REGISTRATION_TOKEN.to_owned(), registration.token.clone());
        let request = Secret {
            metadata: ObjectMeta {
                namespace: Some(key.namespace.clone()),
                name: Some(key.name.clone()),
                annotations: Some([note].into()),
                ..ObjectMeta::default()
            },
            type_: Some(drover_api::secret_types::MACHINE_REQUEST.to_owned()),
            data: Some([("data".to_owned(), ByteString(json!(headers).to_string().into_bytes()))].into()),
            ..Secret::default()
        };
        self.writer.create(&request).await?;
        let look = || match store.secrets.get(&key) {
            Some(secret) => {
                let label = |key: &str| secret.labels().get(key).cloned();
                let machine = ObjectKey::new(label(labels::MACHINE_NAMESPACE)?, label(labels::MACHINE_NAME)?);
                store.machines.get(&machine)
            }
            // Not seen yet, or another call of the same server had its answer and removed it.
            None => registered(store, &registration.management, id),
        };
        let machine = self.waiters.wait(&key, deadline, look).await;
        if machine.is_some() {
            self.writer.delete::<Secret>(&key).await?;
        }
        Ok(machine)
    }
}
