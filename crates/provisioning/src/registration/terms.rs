//! What a registration token allows: which roles, how many machines, until when. Pure.
//!
//! The terms stand on the ClusterRegistrationToken, and its controller copies them to the Secret with the token, so that
//! one lookup decides. Terms that cannot be read allow nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use crate::controlplane::observe::text;
use crate::keys::annotations;
use crate::registration::roles::Roles;

/// Key of the Secret: until when the token is good (RFC 3339), as upstream has it.
pub const EXPIRES_AT: &str = "expiresAt";
/// Key of the Secret: until when the previous token is good.
pub const GRACE_PERIOD_EXPIRES_AT: &str = "gracePeriodExpiresAt";
/// Key of the Secret: names of the Machines that a limited token registered, one per line.
pub const MACHINES: &str = "machines";
/// The most machines that a limit may allow: their names are kept in the Secret.
pub const MOST_MACHINES: usize = 10_000;

/// What a token is bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// None: every role, as Rancher's tokens have it.
    pub roles: Option<Roles>,
    /// How many machines it may register.
    pub limit: Option<usize>,
}

/// Why a token is not taken, and with which status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub why: String,
}

impl Terms {
    /// From the annotations of a ClusterRegistrationToken or of its Secret.
    pub fn of(notes: &BTreeMap<String, String>) -> Result<Self, String> {
        let roles = match notes.get(annotations::REGISTRATION_ROLES) {
            None => None,
            Some(list) => {
                let roles = Roles::parse(list);
                Some(roles.map_err(|why| format!("{}: {why}", annotations::REGISTRATION_ROLES))?)
            }
        };
        let limit = match notes.get(annotations::REGISTRATION_LIMIT) {
            None => None,
            Some(number) => {
                let limit = number.parse().ok().filter(|limit| (1..=MOST_MACHINES).contains(limit));
                let wrong = || {
                    format!(
                        "{}: {number:?} is not a number from 1 to {MOST_MACHINES}",
                        annotations::REGISTRATION_LIMIT
                    )
                };
                Some(limit.ok_or_else(wrong)?)
            }
        };
        Ok(Self { roles, limit })
    }

    /// The annotations that say it.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let roles =
            self.roles.map(|roles| (annotations::REGISTRATION_ROLES.to_owned(), roles.names().join(",")));
        let limit = self.limit.map(|limit| (annotations::REGISTRATION_LIMIT.to_owned(), limit.to_string()));
        roles.into_iter().chain(limit).collect()
    }

    /// Why a machine with these roles is not taken.
    pub fn refusal(&self, asked: Roles, unscoped_allowed: bool) -> Option<Refusal> {
        let Some(allowed) = self.roles else {
            return (!unscoped_allowed).then(|| Refusal {
                status: 403,
                why: "the token is bound to no roles, and the setting registration-unscoped-tokens switches such tokens \
                      off: print a command with `drover get registration-command`"
                    .to_owned(),
            });
        };
        let beyond = asked.beyond(allowed);
        (!beyond.is_empty()).then(|| Refusal {
            status: 403,
            why: format!(
                "the token registers machines with the role {allowed} only, and the machine asks for {beyond}: print a \
                 command for its roles with `drover get registration-command CLUSTER {}`",
                asked.flags()
            ),
        })
    }
}

/// When a token made at `created` expires; never without a time to live.
pub fn expires_at(created: Timestamp, ttl_minutes: Option<i64>) -> Option<Timestamp> {
    let minutes = ttl_minutes.filter(|minutes| *minutes > 0)?;
    let life = SignedDuration::from_secs(minutes.saturating_mul(60));
    Some(created.checked_add(life).unwrap_or(Timestamp::MAX))
}

/// Whether the token `bearer` in this Secret is past its time. A time that cannot be read has passed.
pub fn is_expired(secret: &Secret, bearer: &str, now: Timestamp) -> bool {
    let current = text(secret, "token").is_some_and(|token| token == bearer);
    let until = text(secret, if current { EXPIRES_AT } else { GRACE_PERIOD_EXPIRES_AT });
    match until.filter(|until| !until.is_empty()) {
        Some(until) => !until.parse::<Timestamp>().is_ok_and(|until| now < until),
        None => false,
    }
}

/// The terms of a Secret.
pub fn of_secret(secret: &Secret) -> Result<Terms, Refusal> {
    Terms::of(secret.annotations()).map_err(|why| Refusal {
        status: 403,
        why: format!("the token cannot be used, because its terms cannot be read: {why}"),
    })
}

/// What a limited token's list becomes when a machine wants to be on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is on the list.
    Known,
    /// The list with it.
    Listed(String),
    /// The list is full.
    Full,
}

/// Machines stay on the list when they are deleted: a token for one machine registers one, even after that one is gone.
pub fn claim(list: &str, machine: &str, limit: usize) -> Claim {
    if list.lines().any(|line| line == machine) {
        return Claim::Known;
    }
    if list.lines().count() >= limit {
        return Claim::Full;
    }
    Claim::Listed(format!("{list}{machine}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    const WORKER: Roles = Roles { etcd: false, control_plane: false, worker: true };
    const ETCD: Roles = Roles { etcd: true, control_plane: false, worker: false };

    fn notes(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn terms_that_cannot_be_read_are_refused() {
        let (roles, limit) = ("drover.io/registration-roles", "drover.io/registration-limit");
        let terms = Terms::of(&notes(&[(roles, "worker,etcd"), (limit, "3")])).unwrap();
        assert_eq!(terms, Terms { roles: Some(Roles { worker: true, ..ETCD }), limit: Some(3) });
        assert_eq!(Terms::of(&terms.annotations()), Ok(terms));
        assert_eq!(Terms::of(&notes(&[])), Ok(Terms::default()));
        for wrong in
            [(roles, ""), (roles, "all"), (limit, "0"), (limit, "-1"), (limit, "many"), (limit, "10001")]
        {
            let why = Terms::of(&notes(&[wrong])).unwrap_err();
            assert!(why.contains(wrong.0) && why.contains(wrong.1), "{why}");
        }
    }

    #[test]
    fn a_token_gives_no_other_roles_than_its_own() {
        let scoped = Terms { roles: Some(WORKER), limit: None };
        assert_eq!(scoped.refusal(WORKER, true), None);
        assert_eq!(scoped.refusal(WORKER, false), None);
        let refused = scoped.refusal(Roles { worker: true, ..ETCD }, true).unwrap();
        assert_eq!(refused.status, 403);
        for part in ["role worker only", "asks for etcd:", "get registration-command CLUSTER --etcd --worker"]
        {
            assert!(refused.why.contains(part), "{}", refused.why);
        }
        let unscoped = Terms::default();
        assert_eq!(unscoped.refusal(ETCD, true), None);
        let off = unscoped.refusal(WORKER, false).unwrap();
        assert!(off.status == 403 && off.why.contains("registration-unscoped-tokens"), "{}", off.why);
    }

    #[test]
    fn a_time_to_live_ends() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let made = at("2026-01-01T00:00:00Z");
        assert_eq!(expires_at(made, Some(60)), Some(at("2026-01-01T01:00:00Z")));
        for forever in [None, Some(0), Some(-5)] {
            assert_eq!(expires_at(made, forever), None);
        }
        assert_eq!(expires_at(made, Some(i64::MAX)), Some(Timestamp::MAX));

        let secret = |pairs: &[(&str, &str)]| Secret {
            data: Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), ByteString((*v).into()))).collect()),
            ..Secret::default()
        };
        let timed = secret(&[("token", "a"), ("previousToken", "b"), ("expiresAt", "2026-01-01T01:00:00Z")]);
        assert!(!is_expired(&timed, "a", at("2026-01-01T00:59:59Z")));
        assert!(is_expired(&timed, "a", at("2026-01-01T01:00:00Z")));
        assert!(!is_expired(&timed, "b", at("2026-01-01T01:00:00Z")), "the previous token has its own time");
        let graced = secret(&[("token", "a"), ("gracePeriodExpiresAt", "2026-01-01T01:00:00Z")]);
        assert!(is_expired(&graced, "b", at("2026-01-01T01:00:00Z")));
        assert!(!is_expired(&graced, "a", at("2026-01-01T01:00:00Z")));
        assert!(is_expired(&secret(&[("token", "a"), ("expiresAt", "soon")]), "a", made), "unreadable");
    }

    #[test]
    fn a_limited_list_counts_each_machine_once() {
        assert_eq!(claim("", "a", 1), Claim::Listed("a\n".into()));
        assert_eq!(claim("a\n", "a", 1), Claim::Known);
        assert_eq!(claim("a\n", "b", 1), Claim::Full);
        assert_eq!(claim("a\n", "b", 2), Claim::Listed("a\nb\n".into()));
    }
}
