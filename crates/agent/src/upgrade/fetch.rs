//! Fetching the agent that is offered: to a file beside the agent's own, verified, and tried.

use std::{
    io::{self, Read as _, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drover_plan::AgentOffer;
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};

use crate::{
    host::{Attr, Exec, Exit, Host, Sink, Source, offload},
    remote::api::Api,
};

/// More than any build of the agent has, so that a wrong answer cannot fill the disk.
const LIMIT: u64 = 256 * 1024 * 1024;
const BATCH: usize = 256 * 1024;
/// Nothing came for this long.
const STALL: Duration = Duration::from_secs(60);
const TRIAL: Duration = Duration::from_secs(20);
/// The program that this process runs, whatever lies at its path by now.
const RUNNING: &str = "/proc/self/exe";

/// What came of it.
pub(super) enum Fetched {
    /// This process is the agent that is offered.
    Running,
    /// It lies at the agent's path already; only this process is another.
    InPlace,
    /// It lies here, ready to be renamed.
    Beside(PathBuf),
}

/// Where the agent that is to follow this one lies until then.
pub(crate) fn beside(executable: &Path) -> PathBuf {
    let name = executable.file_name().and_then(|name| name.to_str()).unwrap_or("agent");
    executable.with_file_name(format!(".{name}.drover-new"))
}

/// Makes sure that the agent with this checksum is at hand.
pub(super) async fn fetch(
    host: &Arc<dyn Host>,
    api: &Api,
    executable: &Path,
    wanted: &str,
) -> Result<Fetched, String> {
    if is_running(host, wanted).await {
        return Ok(Fetched::Running);
    }
    if sum(host, executable).await.as_deref() == Ok(wanted) {
        return Ok(Fetched::InPlace);
    }
    let beside = beside(executable);
    let fetched = async {
        // First the file: a place that cannot be written to is no reason to bother the network.
        let (inner, path) = (host.clone(), beside.clone());
        let file = offload(&**host, move || {
            // Left by a predecessor that was killed.
            let _ = inner.remove_file(&path);
            inner.create(&path, 0o700)
        });
        let file = file.await.unwrap_or_else(|| Err(io::Error::other("broke off")));
        let file = file.map_err(|error| format!("cannot write {}: {error}", beside.display()))?;
        download(host, api, file, wanted).await?;
        like(host, executable, &beside).await?;
        try_out(host, &beside).await
    };
    match fetched.await {
        Ok(()) => Ok(Fetched::Beside(beside)),
        Err(error) => {
            let _ = host.remove_file(&beside);
            Err(error)
        }
    }
}

/// Whether this process runs the program with this checksum.
pub(super) async fn is_running(host: &Arc<dyn Host>, wanted: &str) -> bool {
    sum(host, Path::new(RUNNING)).await.as_deref() == Ok(wanted)
}

async fn sum(host: &Arc<dyn Host>, path: &Path) -> Result<String, String> {
    let (inner, path) = (host.clone(), path.to_owned());
    let summed = offload(&**host, move || {
        let mut file = inner.open(&path)?;
        let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 64 * 1024]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hex::encode(hasher.finalize())),
                n => hasher.update(&buffer[..n]),
            }
        }
    });
    let summed: io::Result<String> = summed.await.unwrap_or_else(|| Err(io::Error::other("broke off")));
    summed.map_err(|error| error.to_string())
}

async fn download(
    host: &Arc<dyn Host>,
    api: &Api,
    file: Box<dyn Write + Send>,
    wanted: &str,
) -> Result<(), String> {
    let asset = super::arch().map(AgentOffer::asset).unwrap_or_default();
    let failed = |why: String| format!("{asset} of {}: {why}", api.server());
    let answer = api.asset(&asset).await.map_err(|error| failed(error.to_string()))?;
    let mut body = answer.into_body();
    let (mut file, mut hasher, mut length) = (file, Sha256::new(), 0_u64);
    let mut batch = Vec::new();
    loop {
        let frame = tokio::time::timeout(STALL, body.frame())
            .await
            .map_err(|_| failed(format!("nothing came for {STALL:?}")))?;
        let last = frame.is_none();
        if let Some(frame) = frame
            && let Ok(chunk) = frame.map_err(|error| failed(error.to_string()))?.into_data()
        {
            length += chunk.len() as u64;
            if length > LIMIT {
                return Err(failed(format!("it is larger than {LIMIT} bytes")));
            }
            batch.extend_from_slice(&chunk);
        }
        if batch.len() >= BATCH || last {
            let bytes = std::mem::take(&mut batch);
            let written = offload(&**host, move || {
                hasher.update(&bytes);
                let written = file.write_all(&bytes).and_then(|()| file.flush());
                (file, hasher, written)
            });
            let result;
            (file, hasher, result) = written.await.ok_or_else(|| failed("writing it broke off".into()))?;
            result.map_err(|error| failed(format!("cannot write it: {error}")))?;
        }
        if last {
            break;
        }
    }
    // Closed: a file that is open for writing cannot be run.
    drop(file);
    let found = hex::encode(hasher.finalize());
    if found != wanted {
        return Err(failed(format!("its checksum is {found}, but {wanted} was offered")));
    }
    Ok(())
}

/// Mode and owner as the agent's own file has them.
async fn like(host: &Arc<dyn Host>, executable: &Path, beside: &Path) -> Result<(), String> {
    let (inner, model, path) = (host.clone(), executable.to_owned(), beside.to_owned());
    let set = offload(&**host, move || {
        let stat = inner.stat(&model)?;
        inner.set_attr(&path, Attr { mode: stat.mode, owner: Some((stat.uid, stat.gid)) })
    });
    let set = set.await.unwrap_or_else(|| Err(io::Error::other("broke off")));
    set.map_err(|error| format!("cannot give {} mode and owner of the agent: {error}", beside.display()))
}

/// Whether it runs at all on this machine.
async fn try_out(host: &Arc<dyn Host>, beside: &Path) -> Result<(), String> {
    struct Head(String);
    impl Sink for Head {
        fn write(&mut self, _: Source, chunk: &[u8]) {
            let room = 400_usize.saturating_sub(self.0.len()).min(chunk.len());
            self.0.push_str(&String::from_utf8_lossy(&chunk[..room]));
        }
    }
    let exec = Exec {
        program: beside.display().to_string(),
        args: vec!["--version".into()],
        env: host.env(),
        dir: "/".into(),
        timeout: Some(TRIAL),
        ..Exec::default()
    };
    let mut head = Head(String::new());
    match host.run(&exec, &mut head).await {
        Ok(Exit::Code(0)) => {
            tracing::info!("fetched {} from the manager", head.0.trim());
            Ok(())
        }
        Ok(Exit::Code(code)) => {
            Err(format!("the agent that is offered does not run here: exited with {code}: {}", head.0.trim()))
        }
        Ok(Exit::TimedOut) => Err("the agent that is offered does not run here: it hangs".into()),
        Err(error) => Err(format!("the agent that is offered does not run here: {error}")),
    }
}
