//! The daemon: puts the parts together and keeps them running until it is told to stop.

use std::{future::Future, sync::Arc};

use tokio::task::JoinSet;

use crate::{
    apply::Applier,
    cluster_ca::ClusterCa,
    config::Config,
    host::Host,
    local::Local,
    remote::{Link, LinkError, Remote},
    status::Board,
};

/// A running agent, and the set of tasks that others may join.
///
/// A companion (for example the reverse tunnel, [`crate::cluster_agent`]) joins with [`Sentinel::join`] before
/// [`Sentinel::run`]: it then lives and ends with the agent, and delays none of its parts. What it needs of the agent
/// it takes from [`Sentinel::host`], [`Sentinel::config`], [`Sentinel::board`] and [`Sentinel::cluster_ca`].
pub struct Sentinel {
    host: Arc<dyn Host>,
    config: Config,
    board: Arc<Board>,
    cluster_ca: ClusterCa,
    tasks: JoinSet<&'static str>,
}

impl Sentinel {
    /// Checks what can be checked and starts. Call it inside a tokio runtime.
    pub fn start(host: Arc<dyn Host>, config: Config, strict: bool) -> Result<Self, LinkError> {
        let board = Arc::new(Board::new(host.clone(), &config.var_dir()));
        // From now on there is something to say.
        board.show(|status| status.remote = config.remote_enabled);
        let applier = Arc::new(Applier::new(host.clone(), &config));
        let cluster_ca = ClusterCa::default();
        let mut tasks = JoinSet::new();
        if config.remote_enabled {
            let file = config.connection_info_file.clone();
            let link = match Link::new(host.clone(), file.clone(), strict) {
                Ok(link) => Arc::new(link),
                Err(error) => {
                    // The agent ends, and this is all that people find.
                    let why = format!("the connection file {} cannot be used: {error}", file.display());
                    board.show(|status| status.trouble = Some(why));
                    return Err(error);
                }
            };
            let remote = Remote::new(host.clone(), &config, applier.clone(), link.clone(), board.clone())
                .reporting(&cluster_ca);
            tasks.spawn(async move {
                link.run().await;
                "connection"
            });
            tasks.spawn(async move {
                remote.run().await;
                "remote plans"
            });
        }
        if config.local_enabled {
            let local = Local::new(host.clone(), &config.local_plan_directory, applier, board.clone());
            tasks.spawn(async move {
                local.run().await;
                "local plans"
            });
        }
        Ok(Self { host, config, board, cluster_ca, tasks })
    }

    /// The machine.
    pub fn host(&self) -> Arc<dyn Host> {
        self.host.clone()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where its status is shown.
    pub fn board(&self) -> Arc<Board> {
        self.board.clone()
    }

    /// Where a companion puts the authority of the cluster, to have it reported.
    pub fn cluster_ca(&self) -> ClusterCa {
        self.cluster_ca.clone()
    }

    /// Adds a companion.
    pub fn join(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            name
        });
    }

    /// Runs until `stop` is ready, then ends every task, and with them the instructions they run.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(name) => tracing::info!("{name} ended"),
                    Err(error) => tracing::error!("a part of the agent broke off: {error}"),
                },
                else => break,
            }
        }
        self.tasks.shutdown().await;
    }
}
