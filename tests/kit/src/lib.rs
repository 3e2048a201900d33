//! Shared by tests. Only a dev-dependency; it may panic, because a test that cannot continue has failed.
//!
//! * [`peer`]: a Go program of `tests/peers` or `tests/oracle`, built once into a cache outside the repository.
//! * [`images`]: small images in archives and for registries.
//! * [`kubernetes`]: a running original etcd, kube-apiserver and kube-controller-manager.
//! * [`metrics`]: a scrape of `/metrics`.
//! * [`tls`]: a certificate authority with servers and clients.
//! * [`eventually`]: waits for a condition with a time limit; tests wait only with it.
//! * `objects` and `demo` (feature `objects`): objects of any kind as JSON, and the cluster that tests of the whole line make.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(feature = "objects")]
pub mod demo;
pub mod images;
pub mod kubernetes;
pub mod metrics;
#[cfg(feature = "objects")]
pub mod objects;
pub mod tls;

use std::fmt::Debug;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};

/// Time limit for something that should be quick; hosts may be busy.
pub const SOON: Duration = Duration::from_secs(90);

/// Builds the Go program in `dir` (relative to the repository) and returns the executable; `None`, with a note on
/// stderr, if Go is missing.
///
/// The executable is cached by a hash of its sources, so that only a change causes a build.
pub fn peer(dir: &str) -> Option<PathBuf> {
    let source = repository().join(dir);
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("\n*** SKIPPED: {dir} needs Go, which is not installed ***\n");
        return None;
    }
    let name = dir.rsplit('/').next().unwrap();
    let program = cache().join(format!("{name}-{}", digest(&source))).join(name);
    // Tests of one process build one after the other; those of another process use another file name.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    if !program.exists() {
        let building = program.with_extension(format!("building-{}", std::process::id()));
        // Values that a program expects from the linker, such as its version.
        let flags = std::fs::read_to_string(source.join("ldflags")).unwrap_or_default();
        let built = Command::new("nice")
            .args(["-n", "5", "go", "build", "-ldflags", flags.trim(), "-o"])
            .arg(&building)
            .arg(".")
            .current_dir(&source)
            .status()
            .expect("go can be started");
        assert!(built.success(), "{dir} does not build");
        // Another test process may have built it as well; both results are equal.
        std::fs::rename(&building, &program).unwrap();
    }
    Some(program)
}

/// `$DROVER_CACHE`, or the default.
pub fn cache() -> PathBuf {
    let home =
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into())).join(".cache/drover");
    std::env::var_os("DROVER_CACHE").map_or_else(home, PathBuf::from).join("peers")
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn digest(dir: &Path) -> String {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut hash = Sha256::new();
    for file in files.iter().filter(|file| file.is_file()) {
        hash.update(file.file_name().unwrap().as_encoded_bytes());
        hash.update(std::fs::read(file).unwrap());
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Repeats `attempt` until it returns `Ok`, for at most `limit`; then panics with the last `Err`.
pub async fn eventually_within<T, E: Debug, F>(limit: Duration, mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(why) => assert!(tokio::time::Instant::now() < deadline, "timed out after {limit:?}: {why:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// [`eventually_within`] the default time.
pub async fn eventually<T, E: Debug, F>(attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    eventually_within(SOON, attempt).await
}
