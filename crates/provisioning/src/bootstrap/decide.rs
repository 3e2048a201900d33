//! Which objects of a machine are written, and what is waited for. Pure and total.

use std::fmt;

use serde::Serialize;

use super::objects;
use super::scope::{Account, MachineView, Scope};

/// What a pass wants done, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Action {
    /// Account, role and binding of the plan secret.
    ApplyPlanAccess,
    ApplyPlanSecret,
    /// It holds a token that the machine does not need any more.
    DeleteBootstrapSecret,
    ApplyAccount,
    CreateTokenSecret,
    /// The Secret with the script, or with a word for machines that need none.
    ApplyBootstrapSecret,
}

/// What a bootstrap waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Waiting {
    Machine,
    /// The CAPI Cluster or its infrastructure.
    Infrastructure {
        cluster: String,
    },
    Token {
        account: String,
    },
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("waiting for the Machine that owns the bootstrap"),
            Self::Infrastructure { cluster } => {
                write!(f, "waiting for the infrastructure of Cluster {cluster} to be provisioned")
            }
            Self::Token { account } => write!(f, "waiting for the token of ServiceAccount {account}"),
        }
    }
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decision {
    pub actions: Vec<Action>,
    pub wait: Option<Waiting>,
    /// The Secret that the machine boots with is complete.
    pub ready: bool,
}

/// Decides.
pub fn decide(scope: &Scope) -> Decision {
    if scope.stopped {
        return Decision::default();
    }
    let Some(machine) = &scope.machine else {
        return Decision { wait: Some(Waiting::Machine), ..Decision::default() };
    };
    if !scope.provisioned {
        let cluster = machine.owners.cluster.clone();
        return Decision { wait: Some(Waiting::Infrastructure { cluster }), ..Decision::default() };
    }
    let mut decision = of_script(scope, machine);
    decision.actions.splice(..0, [Action::ApplyPlanAccess, Action::ApplyPlanSecret]);
    decision
}

fn of_script(scope: &Scope, machine: &MachineView) -> Decision {
    if machine.ending {
        let actions = scope.has_bootstrap_secret.then_some(Action::DeleteBootstrapSecret);
        return Decision { actions: actions.into_iter().collect(), ..Decision::default() };
    }
    if machine.custom {
        return Decision { actions: vec![Action::ApplyBootstrapSecret], wait: None, ready: true };
    }
    let mut actions = vec![Action::ApplyAccount];
    match scope.account {
        Account::Ready => {
            actions.push(Action::ApplyBootstrapSecret);
            return Decision { actions, wait: None, ready: true };
        }
        Account::NoTokenSecret => actions.push(Action::CreateTokenSecret),
        Account::Missing | Account::NoToken => {}
    }
    let account = objects::bootstrap_name(scope.bootstrap.metadata.name.as_deref().unwrap_or_default());
    Decision { actions, wait: Some(Waiting::Token { account }), ready: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        Scope { machine: Some(MachineView::default()), provisioned: true, ..Scope::default() }
    }

    #[test]
    fn nothing_is_written_before_the_infrastructure_or_while_paused() {
        for scope in [
            Scope { provisioned: false, ..scope() },
            Scope { machine: None, ..scope() },
            Scope { stopped: true, ..scope() },
        ] {
            let decision = decide(&scope);
            assert!(decision.actions.is_empty() && !decision.ready, "{decision:?}");
            assert_eq!(decision.wait.is_none(), scope.stopped);
        }
    }

    #[test]
    fn a_script_needs_the_token_of_its_account() {
        let missing = decide(&scope());
        assert_eq!(missing.actions[2..], [Action::ApplyAccount]);
        assert!(matches!(missing.wait, Some(Waiting::Token { .. })));
        let account = decide(&Scope { account: Account::NoTokenSecret, ..scope() });
        assert_eq!(account.actions[2..], [Action::ApplyAccount, Action::CreateTokenSecret]);
        let ready = decide(&Scope { account: Account::Ready, ..scope() });
        assert_eq!(ready.actions[2..], [Action::ApplyAccount, Action::ApplyBootstrapSecret]);
        assert!(ready.ready && ready.wait.is_none());
    }

    #[test]
    fn a_machine_that_is_being_deleted_loses_its_token() {
        let ending = MachineView { ending: true, ..MachineView::default() };
        let mut scope = Scope { machine: Some(ending), has_bootstrap_secret: true, ..scope() };
        assert_eq!(decide(&scope).actions[2..], [Action::DeleteBootstrapSecret]);
        scope.has_bootstrap_secret = false;
        assert_eq!(decide(&scope).actions.len(), 2, "once");
    }

    #[test]
    fn a_machine_that_registered_by_itself_needs_no_account() {
        let custom = MachineView { custom: true, ..MachineView::default() };
        let decision = decide(&Scope { machine: Some(custom), ..scope() });
        assert!(decision.ready && !decision.actions.contains(&Action::ApplyAccount));
    }

    /// Every state, with actions carried out: the account gets its token, and then every pass wants the same.
    #[test]
    fn decisions_come_to_an_end_from_any_state() {
        let accounts = [Account::Missing, Account::NoTokenSecret, Account::NoToken, Account::Ready];
        for (bits, account) in (0..(1_u32 << 6)).flat_map(|bits| accounts.map(|account| (bits, account))) {
            let bit = |n: u32| bits >> n & 1 == 1;
            let machine = MachineView { custom: bit(0), ending: bit(1), ..MachineView::default() };
            let mut scope = Scope {
                machine: bit(2).then_some(machine),
                stopped: bit(3),
                provisioned: bit(4),
                has_bootstrap_secret: bit(5),
                account,
                ..Scope::default()
            };
            for _ in 0..4 {
                for action in decide(&scope).actions {
                    match action {
                        Action::ApplyPlanAccess => {}
                        Action::ApplyPlanSecret => scope.has_plan_secret = true,
                        Action::DeleteBootstrapSecret => scope.has_bootstrap_secret = false,
                        Action::ApplyAccount if scope.account == Account::Missing => {
                            scope.account = Account::NoTokenSecret;
                        }
                        Action::ApplyAccount => {}
                        // The API server fills in the token at once.
                        Action::CreateTokenSecret => scope.account = Account::Ready,
                        Action::ApplyBootstrapSecret => scope.has_bootstrap_secret = true,
                    }
                }
            }
            let end = decide(&scope);
            let once = [Action::DeleteBootstrapSecret, Action::CreateTokenSecret];
            assert!(!end.actions.iter().any(|action| once.contains(action)), "{scope:?}: {end:?}");
        }
    }
}
