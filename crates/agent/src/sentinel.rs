//! The daemon: starts all parts and keeps them running until it is stopped.

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

/// A running agent, whose task set can be extended.
///
/// Another task (for example the reverse tunnel, [`crate::cluster_agent`]) is added with [`Sentinel::join`] before
/// [`Sentinel::run`]. It then starts and ends with the agent, and delays none of its parts. It can use
/// [`Sentinel::host`], [`Sentinel::config`], [`Sentinel::board`] and [`Sentinel::cluster_ca`].
pub struct Sentinel {
    host: Arc<dyn Host>,
    config: Config,
    board: Arc<Board>,
    cluster_ca: ClusterCa,
    tasks: JoinSet<&'static str>,
}

impl Sentinel {
    /// Validates the configuration and starts. Call it inside a tokio runtime.
    pub fn start(host: Arc<dyn Host>, config: Config, strict: bool) -> Result<Self, LinkError> {
        let board = Arc::new(Board::new(host.clone(), &config.var_dir()));
        // From now on the status file exists.
        board.show(|status| status.remote = config.remote_enabled);
        let applier = Arc::new(Applier::new(host.clone(), &config));
        let cluster_ca = ClusterCa::default();
        let mut tasks = JoinSet::new();
        if config.remote_enabled {
            let file = config.connection_info_file.clone();
            let link = match Link::new(host.clone(), file.clone(), strict) {
                Ok(link) => Arc::new(link),
                Err(error) => {
                    // The agent exits, so this is the only place where people can find the reason.
                    let why = format!("invalid connection file {}: {error}", file.display());
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

    /// The host.
    pub fn host(&self) -> Arc<dyn Host> {
        self.host.clone()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The board for its status.
    pub fn board(&self) -> Arc<Board> {
        self.board.clone()
    }

    /// Receives the CA of the cluster, which is then reported.
    pub fn cluster_ca(&self) -> ClusterCa {
        self.cluster_ca.clone()
    }

    /// Adds a task.
    pub fn join(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            name
        });
    }

    /// Runs until `stop` is ready, then aborts all tasks and the instructions that they run.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(name) => tracing::info!("{name} ended"),
                    Err(error) => tracing::error!("a task of the agent failed: {error}"),
                },
                else => break,
            }
        }
        self.tasks.shutdown().await;
    }
}
