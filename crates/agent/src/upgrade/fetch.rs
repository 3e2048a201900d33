//! Downloads the offered agent to a file next to the agent's own, verifies it, and runs it once.

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

/// Larger than any build of the agent, so that a wrong response cannot fill the disk.
const LIMIT: u64 = 256 * 1024 * 1024;
const BATCH: usize = 256 * 1024;
/// The time limit for receiving the next part.
const STALL: Duration = Duration::from_secs(60);
const TRIAL: Duration = Duration::from_secs(20);
/// The program of this process, even after the file was replaced.
const RUNNING: &str = "/proc/self/exe";

/// The result of a fetch.
pub(super) enum Fetched {
    /// This process already runs the offered agent.
    Running,
    /// The file is already the offered agent; only this process is not.
    InPlace,
    /// It was downloaded to this path and can be renamed.
    Downloaded(PathBuf),
}

/// The path of a downloaded agent until it replaces the current one.
pub(crate) fn download_path(executable: &Path) -> PathBuf {
    let name = executable.file_name().and_then(|name| name.to_str()).unwrap_or("agent");
    executable.with_file_name(format!(".{name}.drover-new"))
}

/// Makes the agent with this checksum available.
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
    let path = download_path(executable);
    let fetched = async {
        // Create the file first: without write permission, the download is pointless.
        let (inner, target) = (host.clone(), path.clone());
        let file = offload(&**host, move || {
            // A leftover of an earlier process that was killed.
            let _ = inner.remove_file(&target);
            inner.create(&target, 0o700)
        });
        let file = file.await.unwrap_or_else(|| Err(io::Error::other("interrupted")));
        let file = file.map_err(|error| format!("failed to write {}: {error}", path.display()))?;
        download(host, api, file, wanted).await?;
        copy_attributes(host, executable, &path).await?;
        try_out(host, &path).await
    };
    match fetched.await {
        Ok(()) => Ok(Fetched::Downloaded(path)),
        Err(error) => {
            let _ = host.remove_file(&path);
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
    let summed: io::Result<String> = summed.await.unwrap_or_else(|| Err(io::Error::other("interrupted")));
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
            .map_err(|_| failed(format!("timed out: no data for {STALL:?}")))?;
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
            (file, hasher, result) =
                written.await.ok_or_else(|| failed("writing it was interrupted".into()))?;
            result.map_err(|error| failed(format!("failed to write it: {error}")))?;
        }
        if last {
            break;
        }
    }
    // The file is closed, because a file that is open for writing cannot be executed.
    drop(file);
    let found = hex::encode(hasher.finalize());
    if found != wanted {
        return Err(failed(format!("it does not match its checksum: expected {wanted}, got {found}")));
    }
    Ok(())
}

/// Sets the mode and owner of the agent's own file.
async fn copy_attributes(host: &Arc<dyn Host>, executable: &Path, download: &Path) -> Result<(), String> {
    let (inner, model, path) = (host.clone(), executable.to_owned(), download.to_owned());
    let set = offload(&**host, move || {
        let stat = inner.stat(&model)?;
        inner.set_attr(&path, Attr { mode: stat.mode, owner: Some((stat.uid, stat.gid)) })
    });
    let set = set.await.unwrap_or_else(|| Err(io::Error::other("interrupted")));
    set.map_err(|error| format!("failed to set mode and owner of {}: {error}", download.display()))
}

/// Checks that it runs on this machine.
async fn try_out(host: &Arc<dyn Host>, download: &Path) -> Result<(), String> {
    struct Head(String);
    impl Sink for Head {
        fn write(&mut self, _: Source, chunk: &[u8]) {
            let room = 400_usize.saturating_sub(self.0.len()).min(chunk.len());
            self.0.push_str(&String::from_utf8_lossy(&chunk[..room]));
        }
    }
    let exec = Exec {
        program: download.display().to_string(),
        args: vec!["--version".into()],
        env: host.env(),
        dir: "/".into(),
        timeout: Some(TRIAL),
        ..Exec::default()
    };
    let mut head = Head(String::new());
    match host.run(&exec, &mut head).await {
        Ok(Exit::Code(0)) => {
            tracing::info!("downloaded {} from the manager", head.0.trim());
            Ok(())
        }
        Ok(Exit::Code(code)) => Err(format!(
            "the offered agent does not run on this machine: exit code {code}: {}",
            head.0.trim()
        )),
        Ok(Exit::TimedOut) => Err("the offered agent does not run on this machine: timed out".into()),
        Err(error) => Err(format!("the offered agent does not run on this machine: {error}")),
    }
}
