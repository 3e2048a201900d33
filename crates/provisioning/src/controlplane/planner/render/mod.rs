//! From cluster and machine to the bytes of a plan. Pure: the same input gives the same bytes.
//!
//! [`desired_plan`] is the entry. Configuration is in [`config`], files in [`files`], what runs in
//! [`instructions`], health questions in [`probes`].

pub mod addresses;
pub mod config;
pub mod files;
pub mod instructions;
pub mod probes;
pub mod selector;
pub mod selector_files;

use std::collections::{BTreeMap, BTreeSet};

use drover_api::rke::v1::RKEControlPlaneSpec;
use drover_plan::Plan;
use serde_json::{Value, json};

use super::entry::Entry;
use super::releases::Release;
use super::runtime::Runtime;
use crate::settings::Settings;
use addresses::Addresses;
use selector_files::FileObjects;

/// Tokens that machines join with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    pub server: String,
    pub agent: String,
}

/// Everything of a cluster that plans are made of.
#[derive(Clone, Debug)]
pub struct ClusterInput {
    pub spec: RKEControlPlaneSpec,
    pub config_generation: i64,
    pub runtime: Runtime,
    pub data_dir: String,
    pub tokens: Tokens,
    pub settings: Settings,
    /// What drivers saved, by infrastructure machine.
    pub machine_addresses: BTreeMap<String, Addresses>,
    /// What `machineSelectorFiles` refers to.
    pub file_objects: FileObjects,
    /// Manifest that registers the cluster with its manager.
    pub cluster_agent_manifest: String,
    /// The provisioning Cluster's spec, for snapshots to remember.
    pub cluster_spec_annotation: String,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Something will come by itself; other machines and tiers go on.
    #[error("{0}")]
    Ignore(String),
    /// This machine's input is wrong.
    #[error("{0}")]
    Machine(String),
}

/// A plan, and what it was made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    pub plan: Plan,
    pub joined_to: String,
    /// Keys a person set that no machine of the cluster knows.
    pub refused: BTreeSet<String>,
}

/// The plan that `entry` should have.
pub fn desired_plan(
    input: &ClusterInput,
    release: &Release,
    entry: &Entry,
    join_url: &str,
) -> Result<Rendered, RenderError> {
    let rendered = render(input, release, entry, join_url, None)?;
    Ok(keep_labels(input, release, entry, join_url, &rendered)?.unwrap_or(rendered))
}

/// Labels and taints of a living node are changed through its API, without a restart. Their copy in the
/// configuration only matters when the node registers, so they alone never make one: while nothing else asks for a
/// restart, the plan keeps the delivered labels and taints. What is written without a restart, such as the record of
/// the specification that every edit changes, must not carry them along.
fn keep_labels(
    input: &ClusterInput,
    release: &Release,
    entry: &Entry,
    join_url: &str,
    rendered: &Rendered,
) -> Result<Option<Rendered>, RenderError> {
    let Some(delivered) = entry.node.plan.as_ref().filter(|_| entry.machine.node_ref.is_some()) else {
        return Ok(None);
    };
    if *delivered == rendered.plan {
        return Ok(None);
    }
    let Some(old) = entry
        .node
        .delivered_file(&input.runtime.config_file())
        .and_then(|bytes| serde_json::from_slice::<BTreeMap<String, Value>>(&bytes).ok())
    else {
        return Ok(None);
    };
    let with_old = render(input, release, entry, join_url, Some(&old))?;
    let stamp = |plan| instructions::install_env(plan, instructions::RESTART_STAMP).map(str::to_owned);
    Ok((stamp(&with_old.plan) == stamp(delivered)).then_some(with_old))
}

fn render(
    input: &ClusterInput,
    release: &Release,
    entry: &Entry,
    join_url: &str,
    old: Option<&BTreeMap<String, Value>>,
) -> Result<Rendered, RenderError> {
    let (mut config, refused) = config::machine_config(input, release, entry, join_url)?;
    if let Some(old) = old {
        for key in ["node-label", "node-taint"] {
            let kept = old.get(key).cloned().unwrap_or(json!([]));
            config.insert(key.to_owned(), kept);
        }
    }
    let joined_to = if entry.is_init_node() { String::new() } else { join_url.to_owned() };
    let mut plan = Plan::default();
    let probes = probes::probes(input, entry, &config);
    if input.spec.unmanaged_config {
        let install = instructions::install(input, entry, &[], &[]);
        plan.instructions.push(install);
    } else {
        let files = files::files(input, entry, &mut config)?;
        let drain_config = config::to_bytes(&config, &["server", "cluster-init"]);
        plan.instructions.push(instructions::install(input, entry, &files, &drain_config));
        plan.files = files;
        if entry.is_init_node() && entry.is_only_etcd() {
            plan.periodic_instructions = instructions::etcd_only_reports(input);
        }
    }
    plan.probes = probes;
    Ok(Rendered { plan, joined_to, refused })
}
