//! A separate `C:` under Wine with the agent for Windows. Wine is not Windows: see docs/windows.md.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, SystemTime},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Child,
};

const TARGET: &str = "x86_64-pc-windows-gnu";
const COMPILER: &str = "x86_64-w64-mingw32-gcc";
/// On Debian it is not in PATH.
const WINE: &[&str] = &["wine64", "/usr/lib/wine/wine64", "wine"];
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The agent's log in the foreground.
const LOG: &str = "agent.log";

/// Rust's standard library needs a library for random numbers that Wine has only since version 9.
const RANDOM: &str = "
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
    return SystemFunction036(data, (ULONG)size);
}
";
/// A program that waits, for a file or forever.
const WAIT: &str = "
#include <windows.h>
int main(int count, char **args) {
    while (count < 2 || GetFileAttributesA(args[1]) == INVALID_FILE_ATTRIBUTES) Sleep(50);
    return 0;
}
";

pub struct Wine {
    dir: tempfile::TempDir,
    wine: PathBuf,
    keeper: Option<Child>,
}

impl Wine {
    /// Creates it, or returns why it cannot be created.
    pub async fn boot() -> Result<Self, String> {
        let agent = agent()?;
        let runs = |wine: &&&str| {
            Command::new(wine).arg("--version").output().is_ok_and(|version| version.status.success())
        };
        let wine = WINE.iter().find(runs).ok_or("Wine is not installed")?;
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut booted = Self { dir, wine: wine.into(), keeper: None };
        // The first program creates `C:`; while it waits for input, Wine does not end its services.
        let mut keeper = tokio::process::Command::from(booted.command("cmd.exe", &[]));
        keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut keeper = keeper.spawn().map_err(|error| format!("{wine}: {error}"))?;
        let written = keeper.stdin.as_mut().unwrap().write_all(b"echo booted\r\n").await;
        let mut said = BufReader::new(keeper.stdout.take().unwrap()).lines();
        booted.keeper = Some(keeper);
        let answered = async {
            while !said.next_line().await.ok()??.contains("booted") {}
            Some(())
        };
        if written.is_err() || tokio::time::timeout(PATIENCE, answered).await.ok().flatten().is_none() {
            return Err(format!("{wine} does not create C:"));
        }
        fs::create_dir_all(booted.path("bin")).unwrap();
        fs::copy(agent, booted.path("bin/drover-agent.exe")).unwrap();
        booted.compile(WAIT, "bin/wait.exe", &[])?;
        if !booted.path("windows/system32/bcryptprimitives.dll").exists() {
            booted.compile(RANDOM, "bin/bcryptprimitives.dll", &["-shared"])?;
        }
        Ok(booted)
    }

    fn compile(&self, source: &str, to: &str, flags: &[&str]) -> Result<(), String> {
        let file = self.dir.path().join("source.c");
        fs::write(&file, source).unwrap();
        let compiled = Command::new(COMPILER)
            .args(flags)
            .arg(&file)
            .arg("-o")
            .arg(self.path(to))
            .arg("-ladvapi32")
            .output()
            .map_err(|error| format!("{COMPILER}: {error}"))?;
        let why = || format!("{COMPILER}: {}", String::from_utf8_lossy(&compiled.stderr));
        if compiled.status.success() { Ok(()) } else { Err(why()) }
    }

    /// A path on `C:`, on the host.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("drive_c").join(name)
    }

    /// Writes a file on `C:`, and creates its directory.
    pub fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A file on `C:`; empty if it does not exist.
    pub fn read(&self, name: &str) -> String {
        fs::read(self.path(name)).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    /// A Windows program.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.wine);
        command
            .arg(program)
            .args(args)
            .env("WINEPREFIX", self.dir.path())
            .env("WINEDEBUG", "-all")
            // Without .NET and a browser, which it would offer to install.
            .env("WINEDLLOVERRIDES", "mscoree=;mshtml=;winemenubuilder.exe=")
            .env("HOME", self.dir.path())
            // It must not find files of the host, neither by name nor from the root of its current drive.
            .env("CATTLE_AGENT_ADMIN_KUBECONFIG", "C:/admin.yaml")
            .current_dir(match self.path("") {
                drive if drive.is_dir() => drive,
                _ => self.dir.path().to_owned(),
            })
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .stdin(Stdio::null());
        command
    }

    pub fn agent(&self, args: &[&str]) -> Command {
        self.command(r"C:\bin\drover-agent.exe", args)
    }

    /// Starts the agent in the foreground; it must be stopped by hand.
    pub fn start(&self) -> Child {
        let log = fs::File::create(self.path(LOG)).unwrap();
        let mut command = self.agent(&["sentinel"]);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap()
    }

    /// Runs a program to its end.
    pub async fn output(&self, command: Command) -> Output {
        let mut command = tokio::process::Command::from(command);
        let shown = format!("{command:?}");
        let ended = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output()).await;
        ended.unwrap_or_else(|_| panic!("timed out waiting for the end of {shown}")).unwrap()
    }

    /// Both outputs, and whether it succeeded.
    pub async fn says(&self, command: Command) -> (bool, String) {
        let ended = self.output(command).await;
        let said = [ended.stdout, ended.stderr].concat();
        (ended.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// The output of the service manager.
    pub async fn service(&self, args: &[&str]) -> String {
        self.says(self.command("sc.exe", args)).await.1
    }

    /// Waits for a condition.
    pub async fn until(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !condition().await {
            assert!(tokio::time::Instant::now() < deadline, "timed out waiting for: {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The number of processes of this program on this `C:`.
    pub fn count(&self, program: &str) -> usize {
        let marker = format!("WINEPREFIX={}", self.dir.path().display());
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let is = |path: &Path| {
            let read = |name: &str| fs::read(path.join(name)).unwrap_or_default();
            let first = |bytes: Vec<u8>| bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
            let name = String::from_utf8_lossy(&first(read("cmdline"))).into_owned();
            name.ends_with(program)
                && read("environ").split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes())
        };
        processes.filter(|path| is(path)).count()
    }
}

impl Drop for Wine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the agent ---\n{}", self.read(LOG));
        }
        // Ends every program on this `C:`, and no other.
        for server in ["wineserver", "/usr/lib/wine/wineserver"] {
            let ended = Command::new(server).arg("-k").env("WINEPREFIX", self.dir.path()).output();
            if ended.is_ok() {
                break;
            }
        }
    }
}

/// The agent for Windows, if it was built after its sources changed.
fn agent() -> Result<PathBuf, String> {
    let how = format!("build it with cargo build -p drover-agent --target {TARGET}");
    let native = Path::new(env!("CARGO_BIN_EXE_drover-agent"));
    let profile = native.parent().unwrap();
    let agent =
        profile.parent().unwrap().join(TARGET).join(profile.file_name().unwrap()).join("drover-agent.exe");
    let built = fs::metadata(&agent)
        .and_then(|found| found.modified())
        .map_err(|_| format!("the agent for Windows is not built; {how}"))?;
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let changed = ["agent/src", "plan/src", "tunnel/src"].map(|name| newest(&crates.join(name)));
    match changed.into_iter().max() {
        Some(changed) if changed > built => Err(format!("the agent for Windows is outdated; {how}")),
        _ => Ok(agent),
    }
}

fn newest(dir: &Path) -> SystemTime {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let times = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
        true => newest(&entry.path()),
        false => entry.metadata().unwrap().modified().unwrap(),
    });
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}
