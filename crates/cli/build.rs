//! Builds the node agent, static and for an explicit target, in its own folder, so that one cargo command builds a
//! `drover` that contains it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let root = manifest.join("../..");
    for watched in ["crates/agent", "crates/plan", "crates/tunnel", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }
    let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_default());
    match build_agent(&root, &out) {
        Ok(agent) => {
            let script = |verb: &str| root.join(format!("crates/agent/assets/system-agent-{verb}.sh"));
            println!("cargo::rustc-env=DROVER_AGENT_BINARY={}", agent.display());
            println!("cargo::rustc-env=DROVER_INSTALL_SCRIPT={}", script("install").display());
            println!("cargo::rustc-env=DROVER_UNINSTALL_SCRIPT={}", script("uninstall").display());
        }
        Err(why) => {
            eprintln!("failed to build the node agent: {why}");
            std::process::exit(1);
        }
    }
}

fn build_agent(root: &Path, out: &Path) -> Result<PathBuf, String> {
    let target = env::var("TARGET").map_err(|e| e.to_string())?;
    // A debug build of drover contains a debug agent, which is quicker to build but larger.
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let profile = if release { "agent" } else { "dev" };
    let folder = out.join("agent");
    let status = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["build", "--package", "drover-agent", "--bin", "drover-agent"])
        .args(["--profile", profile, "--target", &target, "--target-dir"])
        .arg(&folder)
        .current_dir(root)
        // `+crt-static` must apply only to the target's code. With an explicit --target, RUSTFLAGS does that.
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()
        .map_err(|e| format!("failed to start cargo: {e}"))?;
    if !status.success() {
        return Err("the build failed".into());
    }
    let dir = if release { "agent" } else { "debug" };
    Ok(folder.join(target).join(dir).join("drover-agent"))
}
