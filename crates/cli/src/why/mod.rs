//! `drover why`: the chain of causes from an object down to the one that matters.
//!
//! [`own`] reads the waits of one object, [`walk`] follows them from object to object, [`replaced`] finds failures of
//! machines that no longer exist, and [`show`] prints the result. All of these are pure. This file has the arguments and
//! the reads.

#[cfg(test)]
mod everywait;
mod own;
mod replaced;
mod show;
#[cfg(test)]
mod tests;
mod walk;

use anyhow::{Context, bail};
use clap::Args;
use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment, MachineSet};
use drover_api::labels::rke::{CAPI_MACHINE_NAME, MACHINE_POOL_NAME};
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject, ListParams};

use crate::args::path_name;
use crate::cluster::Plane;
use crate::family::{Family, Fetch, Item, Key, erased};
use crate::output::{Format, answer, chain, print_error_line};

/// Exit code: something is waited for.
const WAITING: i32 = 1;
/// Exit code: the command failed.
const FAILED: i32 = 2;

#[derive(Args)]
#[command(after_help = "Exit codes: 0 if nothing is waited for, 1 if something is, 2 if the command failed.")]
pub(crate) struct Why {
    /// What to explain: a cluster, or KIND/NAME with KIND one of cluster, controlplane, pool, machineset, machine, job.
    #[arg(value_name = "[KIND/]NAME", value_parser = Target::parse)]
    target: Target,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    plane: Plane,
}

/// Kinds that can be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cluster,
    ControlPlane,
    Pool,
    MachineSet,
    Machine,
    Job,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text.to_lowercase().as_str() {
            "cluster" | "clusters" => Self::Cluster,
            "controlplane" | "rkecontrolplane" => Self::ControlPlane,
            "pool" | "machinedeployment" | "md" => Self::Pool,
            "machineset" | "ms" => Self::MachineSet,
            "machine" | "machines" => Self::Machine,
            "job" | "jobs" => Self::Job,
            _ => return None,
        })
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::Cluster => erased::<Cluster>(),
            Self::ControlPlane => erased::<RKEControlPlane>(),
            Self::Pool => erased::<MachineDeployment>(),
            Self::MachineSet => erased::<MachineSet>(),
            Self::Machine => erased::<Machine>(),
            Self::Job => erased::<Job>(),
        }
    }
}

/// `[KIND/]NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    kind: Kind,
    name: String,
}

impl Target {
    fn parse(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("cluster", text));
        let kind = Kind::parse(kind).ok_or_else(|| {
            format!(
                "{kind:?} cannot be explained; KIND is one of cluster, controlplane, pool (or machinedeployment), \
                 machineset, machine, job"
            )
        })?;
        Ok(Self { kind, name: path_name(name)? })
    }
}

impl Why {
    pub(crate) async fn run(self) -> anyhow::Result<i32> {
        // 1 is a valid result here, so an error needs another code.
        match self.explain().await {
            Ok(code) => Ok(code),
            Err(error) => {
                print_error_line(&format!("drover: {}", chain(&error)));
                Ok(FAILED)
            }
        }
    }

    async fn explain(self) -> anyhow::Result<i32> {
        let client = self.plane.client().await?;
        let mut fetch = Fetch::new(&client, &self.plane.namespace);
        let (mut family, root) = look(&mut fetch, &self.target, &self.plane.namespace).await?;
        family.warnings = fetch.warnings().await?;
        let root = family.get(&root).context("the object has just been deleted")?;
        let report = walk::explain(&family, root);
        let now = jiff::Timestamp::now();
        answer(&self.output.render(&report, || show::text(&report, now))?)?;
        Ok(if report.waiting { WAITING } else { 0 })
    }
}

/// Finds the object, and everything that may explain it.
async fn look(fetch: &mut Fetch<'_>, target: &Target, namespace: &str) -> anyhow::Result<(Family, Key)> {
    let resource = target.kind.resource();
    let key = |resource: &ApiResource, name: &str| Key::new(&resource.group, &resource.kind, name);
    if target.kind == Kind::Cluster {
        let family = fetch.family(&target.name).await?;
        // Clusters that were not created by Drover have only the second.
        let roots = [Key::of::<Cluster>(&target.name), Key::of::<CapiCluster>(&target.name)];
        if let Some(root) = roots.into_iter().find(|key| family.get(key).is_some()) {
            return Ok((family, root));
        }
        let mut all = fetch.list(&resource, &ListParams::default()).await?;
        all.extend(fetch.list(&erased::<CapiCluster>(), &ListParams::default()).await?);
        bail!("{}", missing("cluster", &target.name, namespace, &names(&all)));
    }
    let object = match fetch.get(&resource, &target.name).await? {
        Some(object) => object,
        None => {
            let all = fetch.list(&resource, &ListParams::default()).await?;
            let missing = || missing(&resource.kind, &target.name, namespace, &names(&all));
            by_pool(target, &all)?.cloned().with_context(missing)?
        }
    };
    let root = Item { key: key(&resource, &object.name_any()), object };
    let cluster = match target.kind {
        Kind::Job => owner_of_job(fetch, &root).await?,
        Kind::ControlPlane => Some(root.cluster().unwrap_or(&root.key.name).to_owned()),
        _ => root.cluster().map(str::to_owned),
    };
    let mut family = match cluster {
        Some(cluster) => fetch.family(&cluster).await?,
        None => Family::default(),
    };
    if family.get(&root.key).is_none() {
        family.items.push(root.clone());
    }
    if target.kind == Kind::Job {
        fetch.jobs(std::slice::from_ref(&root.key.name), &mut family).await?;
    }
    Ok((family, root.key))
}

/// The cluster of the Machine that a Job creates or removes.
async fn owner_of_job(fetch: &Fetch<'_>, job: &Item) -> anyhow::Result<Option<String>> {
    let Some(machine) = job.label(CAPI_MACHINE_NAME) else { return Ok(None) };
    let resource = erased::<Machine>();
    let found = fetch.get(&resource, machine).await?;
    let found = found.map(|object| Item { key: Key::of::<Machine>(machine), object });
    Ok(found.and_then(|machine| machine.cluster().map(str::to_owned)))
}

/// The MachineDeployment of a pool, by the name of the pool in its cluster.
fn by_pool<'a>(target: &Target, all: &'a [DynamicObject]) -> anyhow::Result<Option<&'a DynamicObject>> {
    if target.kind != Kind::Pool {
        return Ok(None);
    }
    // The label is one of the Machines' labels.
    let is_pool = |object: &&DynamicObject| {
        let labels = object.data.pointer("/spec/template/metadata/labels");
        labels.is_some_and(|labels| labels[MACHINE_POOL_NAME] == target.name.as_str())
    };
    let found: Vec<&DynamicObject> = all.iter().filter(is_pool).collect();
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        several => {
            let names: Vec<String> = several.iter().map(|object| object.name_any()).collect();
            bail!("several clusters have a pool {}; specify one of {}", target.name, names.join(", "))
        }
    }
}

fn names(objects: &[DynamicObject]) -> Vec<String> {
    objects.iter().map(ResourceExt::name_any).collect()
}

/// The error for a name that does not exist: similar names if there are any, otherwise all names.
fn missing(kind: &str, name: &str, namespace: &str, known: &[String]) -> String {
    let mut near: Vec<&String> =
        known.iter().filter(|other| strsim::normalized_damerau_levenshtein(name, other) >= 0.6).collect();
    near.extend(known.iter().filter(|other| other.starts_with(name) || name.starts_with(other.as_str())));
    near.sort();
    near.dedup();
    let list = |names: &[&String]| names.iter().take(5).map(|n| n.as_str()).collect::<Vec<_>>().join(", ");
    let hint = if !near.is_empty() {
        format!("did you mean {}?", list(&near))
    } else if known.is_empty() {
        format!("there is no {kind} in this namespace; set another one with --namespace")
    } else {
        format!("the existing ones are {}", list(&known.iter().collect::<Vec<_>>()))
    };
    format!("{kind} {name} was not found in namespace {namespace}: {hint}")
}
