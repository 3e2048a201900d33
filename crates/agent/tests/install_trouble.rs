//! What goes wrong while the install script runs, and what must not follow from it.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::process::Output;

use common::{
    manager::Server,
    root::{Root, said},
};

const ID: &str = "etc/rancher/agent/cattle-id";
const REGISTRATION: &str = "/v3/connect/agent";

/// Installs a worker of this server, with more in its environment.
async fn install(server: &Server, root: &Root, env: &[(&str, &str)]) -> Output {
    let checksum = server.checksum();
    let env = [&[("NO_PROXY", "127.0.0.1")], env].concat();
    root.install_with(&env, &["-s", &server.url, "-t", "the \"token\"", "-c", &checksum, "-w"]).await
}

/// A machine that the server knows by an identity which is nowhere else would never be heard of again.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_written_ends_the_installation() {
    let server = Server::start().await;
    let root = Root::new("none");
    std::fs::create_dir_all(root.at(&format!("{ID}.tmp"))).unwrap();
    let output = install(&server, &root, &[]).await;
    assert!(!output.status.success() && said(&output).contains("cannot write"), "{}", said(&output));
    assert_eq!(server.count(REGISTRATION), 0, "the server never heard of this machine");

    let root = Root::new("none");
    std::fs::create_dir_all(root.at("etc/systemd/system/rancher-system-agent.env.tmp")).unwrap();
    let output = install(&server, &root, &[]).await;
    assert!(!output.status.success() && said(&output).contains("cannot write"), "{}", said(&output));
    assert!(!root.at("systemctl.log").exists(), "an agent without its proxies is not started");
}
