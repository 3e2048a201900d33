//! `drover get`.

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use drover_api::provisioning::v1::Cluster;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::json;

use crate::args::path_name;
use crate::cluster::{self, Plane};
use crate::output::{Format, age, answer, chain, columns, print_error_line};
use crate::registration::RegistrationCommand;

#[derive(Args)]
pub(crate) struct Get {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// List clusters.
    #[command(visible_alias = "cluster")]
    Clusters {
        /// Names of the clusters to list [default: all].
        #[arg(value_name = "NAME", value_parser = path_name)]
        names: Vec<String>,
        /// List clusters in all namespaces.
        #[arg(short = 'A', long, conflicts_with = "names")]
        all_namespaces: bool,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
        #[command(flatten)]
        plane: Plane,
    },
    /// Print the kubeconfig of a cluster.
    Kubeconfig {
        /// The cluster.
        #[arg(value_parser = path_name)]
        name: String,
        #[command(flatten)]
        plane: Plane,
    },
    /// Print the command that registers your own machine with a cluster. Run it on that machine as root.
    RegistrationCommand(RegistrationCommand),
}

impl Get {
    pub(crate) async fn run(self) -> anyhow::Result<i32> {
        match self.what {
            What::Clusters { names, all_namespaces, output, plane } => {
                let client = plane.client().await?;
                if !names.is_empty() {
                    return named(&client, &plane.namespace, &names, output).await;
                }
                let found = clusters(client, &plane.namespace, all_namespaces).await?;
                let text = if found.is_empty() && output == Format::Table {
                    nothing((!all_namespaces).then_some(plane.namespace.as_str()))
                } else {
                    shown(found, false, output)?
                };
                answer(&text)?;
            }
            What::Kubeconfig { name, plane } => {
                let client = plane.client().await?;
                let Some(text) = cluster::kubeconfig(&client, &plane.namespace, &name).await? else {
                    find(&client, &plane.namespace, &name).await?;
                    bail!("cluster {name} has no kubeconfig yet; it is created when the cluster connects");
                };
                answer(&text)?;
            }
            What::RegistrationCommand(command) => command.run().await?,
        }
        Ok(0)
    }
}

pub(crate) async fn find(client: &kube::Client, namespace: &str, name: &str) -> anyhow::Result<Cluster> {
    let api: Api<Cluster> = Api::namespaced(client.clone(), namespace);
    api.get_opt(name).await?.with_context(|| no_cluster(name, namespace))
}

/// The error for a cluster that does not exist.
pub(crate) fn no_cluster(name: &str, namespace: &str) -> String {
    format!(
        "cluster {name} not found in namespace {namespace}; list all clusters with `drover get clusters -A`"
    )
}

async fn clusters(client: kube::Client, namespace: &str, all: bool) -> anyhow::Result<Vec<Cluster>> {
    let api: Api<Cluster> = if all { Api::all(client) } else { Api::namespaced(client, namespace) };
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Prints the clusters that exist, and an error for each of the others, as kubectl does.
async fn named(
    client: &kube::Client,
    namespace: &str,
    names: &[String],
    output: Format,
) -> anyhow::Result<i32> {
    let (mut found, mut missed) = (vec![], vec![]);
    for name in names {
        match find(client, namespace, name).await {
            Ok(cluster) => found.push(cluster),
            Err(error) => missed.push(error),
        }
    }
    // An empty list is useful to a program, not to a person.
    let bare = names.len() == 1;
    if !found.is_empty() || !(bare || output == Format::Table) {
        answer(&shown(found, bare, output)?)?;
    }
    for error in &missed {
        print_error_line(&format!("drover: {}", chain(error)));
    }
    Ok(i32::from(!missed.is_empty()))
}

/// Formats clusters as kubectl does: a single cluster by name is printed as it is, others as a List, without managed
/// fields.
fn shown(mut clusters: Vec<Cluster>, bare: bool, output: Format) -> anyhow::Result<String> {
    for cluster in &mut clusters {
        cluster.metadata.managed_fields = None;
    }
    let table = || table(&clusters, Timestamp::now());
    match clusters.first() {
        Some(cluster) if bare => output.render(cluster, table),
        _ => {
            let metadata = json!({"resourceVersion": ""});
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": clusters});
            output.render(&list, table)
        }
    }
}

/// The text instead of an empty table.
fn nothing(namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => {
            format!("no clusters in namespace {namespace}; list all clusters with `drover get clusters -A`\n")
        }
        None => "no clusters\n".to_owned(),
    }
}

fn table(clusters: &[Cluster], now: Timestamp) -> String {
    let row = |cluster: &Cluster| {
        let status = cluster.status.as_ref();
        let condition = |type_: &str| status.and_then(|s| s.conditions.iter().find(|c| c.type_ == type_));
        let ready = condition("Ready");
        // A Ready cluster whose new specification is rejected shows the reason, too.
        let waits = condition("Stalled").filter(|c| c.status == "True");
        let waits = waits.or_else(|| ready.filter(|c| c.status != "True"));
        let created = cluster.creation_timestamp().map(|time| age(time.0, now)).unwrap_or_default();
        vec![
            cluster.namespace().unwrap_or_default(),
            cluster.name_any(),
            ready.map_or_else(|| "Unknown".to_owned(), |c| c.status.clone()),
            cluster.spec.kubernetes_version.clone(),
            status.map(|s| s.cluster_name.clone()).unwrap_or_default(),
            created,
            waits.map(|c| c.message.replace('\n', " ")).unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = clusters.iter().map(row).collect();
    columns(&["NAMESPACE", "NAME", "READY", "VERSION", "ID", "AGE", "WAITS FOR"], &rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::Value;

    fn cluster(name: &str) -> Cluster {
        serde_json::from_value(json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
            "metadata": {"name": name, "managedFields": [{"manager": "other"}]},
            "spec": {},
        }))
        .unwrap()
    }

    #[test]
    fn a_cluster_is_one_row_even_if_its_message_has_several_lines() {
        let mut waits = cluster("a");
        let status = json!({"conditions": [{"type": "Ready", "status": "False", "message": "* b\n* c"}]});
        waits.status = serde_json::from_value(status).unwrap();
        let drawn = table(&[waits], Timestamp::UNIX_EPOCH);
        assert!(drawn.lines().count() == 2 && drawn.ends_with("* b * c\n"), "{drawn}");
    }

    #[test]
    fn an_empty_result_names_the_namespace() {
        assert!(nothing(Some("here")).starts_with("no clusters in namespace here; list all clusters"));
        assert_eq!(nothing(None), "no clusters\n");
    }

    #[test]
    fn clusters_are_printed_as_kubectl_does() {
        let printed = |clusters: &[&str], bare| -> Value {
            let clusters = || clusters.iter().map(|name| cluster(name)).collect::<Vec<_>>();
            let json = serde_json::from_str(&shown(clusters(), bare, Format::Json).unwrap()).unwrap();
            let yaml: Value =
                serde_saphyr::from_str(&shown(clusters(), bare, Format::Yaml).unwrap()).unwrap();
            assert_eq!(json, yaml);
            json
        };
        let list = printed(&["a", "b"], false);
        assert_eq!((&list["apiVersion"], &list["kind"]), (&json!("v1"), &json!("List")));
        let item = &list["items"][1];
        assert_eq!((&item["kind"], &item["metadata"]), (&json!("Cluster"), &json!({"name": "b"})));
        assert_eq!(printed(&["a"], false)["items"].as_array().unwrap().len(), 1);
        assert_eq!(printed(&[], false)["items"], json!([]));
        assert_eq!(&printed(&["b"], true), item);
    }
}
