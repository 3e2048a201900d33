//! Executes a decision. Every step is guarded and may be repeated.

use drover_runtime::{Error, ObjectKey};
use k8s_openapi::api::core::v1::Secret;

use super::abridged::restored;
use super::decide::{Action, Decision};
use super::scope::Scope;
use super::{Bootstraps, events, objects};

/// What stands in place of a script for a server that has registered already.
const REGISTERED: &str = "# This machine was registered by a person; it runs no bootstrap script.\n";

impl Bootstraps {
    /// Executes the actions in order; the first failure stops.
    pub(super) async fn apply(&self, scope: &Scope, decision: &Decision) -> Result<(), Error> {
        for action in &decision.actions {
            self.execute(scope, action).await?;
            self.context.events.publish(scope.bootstrap.as_ref(), &events::done(scope, action));
        }
        Ok(())
    }

    async fn execute(&self, scope: &Scope, action: &Action) -> Result<(), Error> {
        let Some(machine) = &scope.machine else { return Ok(()) };
        let (bootstrap, owners) = (scope.bootstrap.as_ref(), &machine.owners);
        let key = ObjectKey::of(bootstrap);
        let name = objects::bootstrap_name(&key.name);
        match action {
            Action::ApplyPlanAccess => {
                let access = objects::plan_access(bootstrap, owners);
                self.writer.apply(&access.account).await?;
                self.writer.apply(&access.role).await?;
                self.writer.apply(&access.binding).await?;
            }
            Action::DeleteBootstrapSecret => {
                self.writer.delete::<Secret>(&key.sibling(&name)).await?;
            }
            Action::CreateTokenSecret => {
                let Some(account) = self.context.store.accounts.get(&key.sibling(&name)) else {
                    return Ok(());
                };
                let uid = account.metadata.uid.as_deref().unwrap_or_default();
                let desired = objects::token_secret(&key.namespace, &name, uid, true);
                self.writer.create(&desired).await?;
            }
            Action::ApplyPlanSecret => {
                self.writer.apply(&objects::plan_secret(bootstrap, owners)).await?;
            }
            Action::ApplyAccount => {
                self.writer.apply(&objects::bootstrap_account(bootstrap, owners)).await?;
            }
            Action::ApplyBootstrapSecret => {
                let script = if machine.custom { Some(REGISTERED) } else { scope.script.as_deref() };
                let Some(script) = script else { return Ok(()) };
                let desired = objects::bootstrap_secret(bootstrap, owners, script);
                let held = self.context.store.secrets.get(&key.sibling(&name));
                let live = held.map(|held| restored(held.as_ref().clone(), &desired));
                self.writer.apply_over(&desired, live.as_ref()).await?;
            }
        }
        Ok(())
    }
}
