//! `drover get registration-command`: creates a registration token with the requested limits and prints the command
//! that uses it.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use drover_api::management::v3::{ClusterRegistrationToken, ClusterRegistrationTokenSpec, Setting};
use drover_provisioning::init::pools::parse_duration;
use drover_provisioning::init::twin::token::secret_name;
use drover_provisioning::registration::command::{Roles, node_command};
use drover_provisioning::registration::terms::{MOST_MACHINES, Terms, expires_at};
use drover_provisioning::settings::Settings;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use crate::args::path_name;
use crate::cluster::Plane;
use crate::get::find;
use crate::output::{answer, print_error_line};

/// A token for servers gives access to every secret of the cluster.
const SERVER_LIFE: SignedDuration = SignedDuration::from_hours(24);
const TOKEN_LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

#[derive(Args)]
pub(crate) struct RegistrationCommand {
    /// Name of the cluster.
    #[arg(value_parser = path_name)]
    name: String,
    /// Give the machine the etcd role.
    #[arg(long)]
    etcd: bool,
    /// Give the machine the control plane role.
    #[arg(long = "controlplane", alias = "control-plane")]
    control_plane: bool,
    /// Give the machine the worker role; this is the default.
    #[arg(long)]
    worker: bool,
    /// How long the command is valid, such as 30m or 24h; 0 means that it does not expire [default: 24h with --etcd or --controlplane, else 0].
    #[arg(long, value_name = "DURATION", value_parser = life)]
    ttl: Option<SignedDuration>,
    /// How many machines the command can register [default: no limit].
    #[arg(long, value_name = "NUMBER", value_parser = limit)]
    limit: Option<usize>,
    #[command(flatten)]
    plane: Plane,
}

/// The requested properties of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Wanted {
    terms: Terms,
    roles: Roles,
    /// None: it does not expire.
    ttl_minutes: Option<i64>,
}

impl RegistrationCommand {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let asked = Roles { etcd: self.etcd, control_plane: self.control_plane, worker: self.worker };
        let wanted = Wanted::new(asked, self.ttl, self.limit);
        let client = self.plane.client().await?;
        let cluster = find(&client, &self.plane.namespace, &self.name).await?;
        let id = cluster
            .management_id()
            .with_context(|| format!("cluster {} is not registered yet; try again in a moment", self.name))?;
        let token = token(&client, id, &wanted).await?;
        let value = value(&client, id, &token.name_any()).await?;
        let settings = Settings {
            server_url: setting(&client, "server-url").await?,
            cacerts: setting(&client, "cacerts").await?,
            ..Settings::default()
        };
        print_error_line(&explained(&wanted, &token, id));
        answer(&(node_command(&settings, &value, wanted.roles) + "\n"))
    }
}

impl Wanted {
    fn new(asked: Roles, ttl: Option<SignedDuration>, limit: Option<usize>) -> Self {
        let roles = if asked.is_empty() { Roles { worker: true, ..asked } } else { asked };
        let default = if roles.is_server() { SERVER_LIFE } else { SignedDuration::ZERO };
        let minutes = (ttl.unwrap_or(default).as_secs() + 59) / 60;
        Self {
            terms: Terms { roles: Some(roles), limit },
            roles,
            ttl_minutes: (minutes > 0).then_some(minutes),
        }
    }

    /// Whether a token has the same limits and less than half of its lifetime has passed. Tokens with a limit on
    /// machines are never shared.
    fn is_met_by(&self, token: &ClusterRegistrationToken, now: Timestamp) -> bool {
        let Some(created) = token.creation_timestamp().map(|time| time.0) else { return false };
        let ttl = token.spec.ttl.filter(|minutes| *minutes > 0);
        let fresh = expires_at(created, ttl).is_none_or(|until| {
            until.duration_since(now) > SignedDuration::from_mins(ttl.unwrap_or_default()) / 2
        });
        let same = Terms::of(token.annotations()).is_ok_and(|terms| terms == self.terms);
        same && fresh
            && ttl == self.ttl_minutes
            && self.terms.limit.is_none()
            && token.metadata.deletion_timestamp.is_none()
    }

    /// `registration-worker`: a token that does not expire has a fixed name, so that it is created only once.
    fn name(&self) -> String {
        format!("registration-{}", self.roles.names().join("-"))
    }
}

/// An existing token with these limits, or a new one.
async fn token(client: &Client, id: &str, wanted: &Wanted) -> anyhow::Result<ClusterRegistrationToken> {
    let api: Api<ClusterRegistrationToken> = Api::namespaced(client.clone(), id);
    let doing = || format!("registration tokens in namespace {id} cannot be read");
    let found = api.list(&ListParams::default()).await.with_context(doing)?.items;
    let now = Timestamp::now();
    if let Some(token) = found.iter().find(|token| wanted.is_met_by(token, now)) {
        return Ok(token.clone());
    }
    let lasts = wanted.ttl_minutes.is_none() && wanted.terms.limit.is_none();
    let taken = found.iter().any(|token| token.name_any() == wanted.name());
    let metadata = ObjectMeta {
        name: (lasts && !taken).then(|| wanted.name()),
        generate_name: Some(format!("{}-", wanted.name())),
        annotations: Some(wanted.terms.annotations()),
        ..ObjectMeta::default()
    };
    let spec = ClusterRegistrationTokenSpec {
        cluster_name: id.to_owned(),
        ttl: wanted.ttl_minutes,
        ..ClusterRegistrationTokenSpec::default()
    };
    let new = ClusterRegistrationToken { metadata, spec, status: None };
    match api.create(&PostParams::default(), &new).await {
        // Another process created it first.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(api.get(&wanted.name()).await?),
        made => made.with_context(|| format!("failed to create a registration token in namespace {id}")),
    }
}

/// The token's value, after its controller has generated it.
async fn value(client: &Client, id: &str, token: &str) -> anyhow::Result<String> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), id);
    let name = secret_name(token);
    let deadline = Instant::now() + TOKEN_LIMIT;
    loop {
        let secret =
            secrets.get_opt(&name).await.with_context(|| format!("secret {id}/{name} cannot be read"))?;
        let value = secret.and_then(|secret| secret.data?.remove("token"));
        if let Some(value) = value.and_then(|value| String::from_utf8(value.0).ok()).filter(|v| !v.is_empty())
        {
            return Ok(value);
        }
        if Instant::now() > deadline {
            bail!(
                "the registration token {token} has no value after {} s; see the server's log",
                TOKEN_LIMIT.as_secs()
            );
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Describes the limits of the command on stderr, so that stdout has only the command.
fn explained(wanted: &Wanted, token: &ClusterRegistrationToken, id: &str) -> String {
    let until = token.creation_timestamp().and_then(|made| expires_at(made.0, token.spec.ttl));
    let number = match wanted.terms.limit {
        None => "machines".to_owned(),
        Some(1) => "one machine".to_owned(),
        Some(limit) => format!("up to {limit} machines"),
    };
    let life = until.map_or_else(|| "does not expire".to_owned(), |until| format!("expires at {until:.0}"));
    format!(
        "This command registers {number} with the role {} and {life}. To revoke it, delete ClusterRegistrationToken {} in namespace {id}.",
        wanted.roles,
        token.name_any(),
    )
}

async fn setting(client: &Client, name: &str) -> anyhow::Result<String> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<Setting>(&()));
    let setting = api.get(name).await.with_context(|| format!("setting {name} cannot be read"))?;
    let text = |key: &str| setting.data.get(key).and_then(|v| v.as_str()).filter(|v| !v.is_empty());
    Ok(text("value").or_else(|| text("default")).unwrap_or_default().to_owned())
}

/// `--ttl`.
fn life(text: &str) -> Result<SignedDuration, String> {
    let life = Some(text).filter(|text| !text.is_empty()).and_then(parse_duration);
    let life = life.filter(|life| life.is_zero() || *life >= SignedDuration::from_mins(1));
    life.ok_or_else(|| "expected a duration of at least 1m, such as 30m or 24h, or 0 for no limit".to_owned())
}

/// `--limit`.
fn limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| (1..=MOST_MACHINES).contains(limit));
    limit.ok_or_else(|| format!("expected a number from 1 to {MOST_MACHINES}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn wanted(names: &str, ttl: Option<&str>, limit: Option<usize>) -> Wanted {
        let roles = if names.is_empty() { Roles::default() } else { Roles::parse(names).unwrap() };
        Wanted::new(roles, ttl.map(|ttl| life(ttl).unwrap()), limit)
    }

    #[test]
    fn worker_commands_do_not_expire_and_server_commands_expire_after_a_day() {
        let worker = wanted("", None, None);
        assert_eq!((worker.roles.to_string(), worker.ttl_minutes), ("worker".to_owned(), None));
        assert_eq!(worker.name(), "registration-worker");
        for names in ["etcd", "controlplane", "etcd,worker"] {
            assert_eq!(wanted(names, None, None).ttl_minutes, Some(24 * 60), "{names}");
        }
        assert_eq!(wanted("etcd", Some("0"), None).ttl_minutes, None);
        assert_eq!(wanted("worker", Some("90s"), None).ttl_minutes, Some(2));
        for wrong in ["soon", "10s", "-1h", ""] {
            assert!(life(wrong).is_err(), "{wrong}");
        }
        assert!(limit("0").is_err() && limit("x").is_err() && limit("10001").is_err() && limit("3") == Ok(3));
    }

    #[test]
    fn a_token_is_reused_until_half_of_its_lifetime_has_passed() {
        let token = |notes: serde_json::Value, ttl: i64| -> ClusterRegistrationToken {
            serde_json::from_value(json!({
                "metadata": {"name": "t", "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": notes},
                "spec": {"clusterName": "c", "ttl": ttl},
            }))
            .unwrap()
        };
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let (early, late) = (at("2026-01-01T11:59:00Z"), at("2026-01-01T12:01:00Z"));
        let server = wanted("etcd,controlplane", None, None);
        let same = token(json!({"drover.io/registration-roles": "controlplane,etcd"}), 1440);
        assert!(server.is_met_by(&same, early) && !server.is_met_by(&same, late));
        assert!(!wanted("etcd", None, None).is_met_by(&same, early), "other roles");
        assert!(!wanted("etcd,controlplane", Some("0"), None).is_met_by(&same, early), "another lifetime");
        assert!(!server.is_met_by(&token(json!({}), 1440), early), "not bound to roles");
        let limited =
            token(json!({"drover.io/registration-roles": "worker", "drover.io/registration-limit": "1"}), 0);
        assert!(!wanted("worker", None, Some(1)).is_met_by(&limited, early), "limited");
        assert!(!wanted("worker", None, None).is_met_by(&limited, early));
        let text = explained(&wanted("worker", None, Some(1)), &limited, "c-m-1");
        assert!(text.contains("one machine with the role worker and does not expire"), "{text}");
        let text = explained(&server, &same, "c-m-1");
        assert!(text.contains("role etcd and controlplane and expires at 2026-01-02T00:00:00Z"), "{text}");
    }
}
