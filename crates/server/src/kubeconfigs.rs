//! Deletes the kubeconfigs of deleted clusters from the data directory.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use drover_api::provisioning::v1::Cluster;
use drover_runtime::Cache;
use kube::ResourceExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::datadir::DataDir;

/// Deletes kubeconfigs without a Cluster, at the start and after every deletion.
pub async fn run(data_dir: DataDir, clusters: Cache<Cluster>, stop: CancellationToken) {
    let deleted = Arc::new(Notify::new());
    let notify = deleted.clone();
    clusters.subscribe(move |change| {
        if change.new.is_none() {
            notify.notify_one();
        }
    });
    clusters.synced().await;
    loop {
        let living: HashSet<String> = clusters.list().iter().map(|cluster| cluster.name_any()).collect();
        forget(&data_dir.cluster_kubeconfigs(), &living);
        tokio::select! {
            () = stop.cancelled() => return,
            () = deleted.notified() => {}
        }
    }
}

fn forget(dir: &Path, living: &HashSet<String>) {
    // Without the directory there is nothing to delete.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.strip_suffix(".kubeconfig").is_some_and(|cluster| !living.contains(cluster))
            && let Err(error) = std::fs::remove_file(entry.path())
        {
            tracing::warn!(file = %entry.path().display(), %error, "failed to delete the kubeconfig of a deleted cluster");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kubeconfigs_of_deleted_clusters_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["demo.kubeconfig", "old.kubeconfig", "notes.txt"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        forget(dir.path(), &HashSet::from(["demo".to_owned()]));
        let mut left: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["demo.kubeconfig", "notes.txt"]);
        forget(&dir.path().join("missing"), &HashSet::new());
    }
}
