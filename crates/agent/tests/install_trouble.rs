//! Errors while the install script runs, and what must not follow from them.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::process::Output;

use common::{
    manager::Server,
    root::{Root, one_client_each, said},
};

const CONFIG: &str = "etc/rancher/agent/config.yaml";
const ID: &str = "etc/rancher/agent/cattle-id";
const REGISTRATION: &str = "/v3/connect/agent";

/// Installs a worker of this server, with additional environment.
async fn install(server: &Server, root: &Root, env: &[(&str, &str)]) -> Output {
    let checksum = server.checksum();
    let env = [&[("NO_PROXY", "127.0.0.1")], env].concat();
    root.install_with(&env, &["-s", &server.url, "-t", "the \"token\"", "-c", &checksum, "-w"]).await
}

/// Otherwise the server would know the machine by an identity that is stored nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_written_aborts_the_installation() {
    let server = Server::start().await;
    let root = Root::new("none");
    std::fs::create_dir_all(root.at(&format!("{ID}.tmp"))).unwrap();
    let output = install(&server, &root, &[]).await;
    assert!(!output.status.success() && said(&output).contains("failed to write"), "{}", said(&output));
    assert_eq!(server.count(REGISTRATION), 0, "the machine was not registered");

    let root = Root::new("none");
    std::fs::create_dir_all(root.at("etc/systemd/system/rancher-system-agent.env.tmp")).unwrap();
    let output = install(&server, &root, &[]).await;
    assert!(!output.status.success() && said(&output).contains("failed to write"), "{}", said(&output));
    assert!(!root.at("systemctl.log").exists(), "an agent without its proxies is not started");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_configuration_does_not_replace_a_valid_one() {
    let server = Server::start().await;
    let root = Root::new("none");
    let output = install(&server, &root, &[]).await;
    assert!(output.status.success(), "{}", said(&output));
    let before = root.read(CONFIG);
    // The last one is not valid YAML.
    let odd = root.at("var: x");
    for wrong in [
        ("CATTLE_LOCAL_ENABLED", "enabled"),
        ("CATTLE_PRESERVE_WORKDIR", "yes"),
        ("CATTLE_AGENT_VAR_DIR", odd.to_str().unwrap()),
    ] {
        let output = install(&server, &root, &[wrong]).await;
        assert!(
            !output.status.success() && said(&output).contains("[FATAL]"),
            "{wrong:?}: {}",
            said(&output)
        );
        assert_eq!(root.read(CONFIG), before, "{wrong:?}");
        let beside = std::fs::read_dir(root.at(CONFIG).parent().unwrap()).unwrap().count();
        assert_eq!(beside, 2, "{wrong:?}: only the configuration and the identity");
    }
}

/// Its response equals that for a wrong token.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_not_loaded_its_tokens_yet_is_retried() {
    let server = Server::start().await;
    let answers = |answers: &[(usize, u16)]| {
        for (times, code) in answers {
            server.answer_instead(REGISTRATION, *times, *code, "<html>later</html>");
        }
    };
    for without in one_client_each() {
        let patient = [("CATTLE_AGENT_RETRIES", "10"), ("CATTLE_AGENT_REFUSALS", "3")];
        for (env, given) in [
            (&patient[..1], &[(8, 401)][..]),
            // Another response in between: the server is just starting.
            (&patient, &[(2, 401), (1, 503), (2, 401)]),
            // A page instead of a connection: earlier rejections no longer count.
            (&[], &[(2, 401), (1, 200), (3, 401)]),
        ] {
            answers(given);
            let output = install(&server, &Root::new(without), env).await;
            assert!(output.status.success(), "without {without} {given:?}: {}", said(&output));
        }
        // Rejected permanently after it has registered: the server knows the machine by its identity, so the identity
        // is kept.
        let root = Root::new(without);
        answers(&[(1, 200), (4, 401)]);
        let output = install(&server, &root, &[]).await;
        let text = said(&output);
        assert!(!output.status.success() && text.contains("rejected the token (--token)"), "{text}");
        assert!(!text.contains("nothing was installed") && root.at(ID).exists(), "without {without}: {text}");
    }
}

/// A retry would send the same values.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_the_server_rejects_abort_the_installation_with_its_message() {
    let server = Server::start().await;
    let why = "label zone: the value \"bad/value\" is not one; node name \"M\u{fc}ller\"";
    for without in one_client_each() {
        let said_so = format!("{why}\n\u{1b}");
        for (code, body, error) in [
            (400, said_so.clone(), why),
            (403, said_so.clone(), why),
            (409, said_so, why),
            (400, String::new(), "no reason given"),
        ] {
            let root = Root::new(without);
            server.requests.lock().unwrap().clear();
            // An earlier message is not used.
            server.answer_instead(REGISTRATION, 1, 503, "later");
            server.answer_instead(REGISTRATION, 1, code, &body);
            let output = install(&server, &root, &[]).await;
            let text = said(&output);
            let expected =
                format!("[FATAL] {} rejected the given values: {error}; nothing was installed\n", server.url);
            assert!(!output.status.success() && text.ends_with(&expected), "without {without}: {text}");
            assert!(server.count(REGISTRATION) == 2 && root.is_untouched(), "without {without}: {text}");
        }
        // Other numbers in a response and temporary errors are not treated as a rejection.
        let root = Root::new(without);
        server.answer_instead(REGISTRATION, 2, 503, "error: 400 ERROR 400");
        let output = install(&server, &root, &[]).await;
        assert!(output.status.success(), "without {without}: {}", said(&output));
    }
}

/// Its own pause is so long that the test would fail.
#[tokio::test(flavor = "multi_thread")]
async fn the_retry_after_of_a_rate_limit_is_respected() {
    let server = Server::start().await;
    for without in one_client_each() {
        let root = Root::new(without);
        server.answer_instead(REGISTRATION, 2, 429, "too many machines register at once");
        let env = [("CATTLE_AGENT_RETRY_PAUSE", "3600")];
        let installed = install(&server, &root, &env);
        let output = tokio::time::timeout(std::time::Duration::from_secs(300), installed).await.unwrap();
        assert!(output.status.success(), "without {without}: {}", said(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_uninstall_script_is_reported_before_the_registration() {
    let server = Server::start().await;
    let url = format!("{}/theirs.sh", server.url);
    let env = [("CATTLE_AGENT_UNINSTALL_URL", url.as_str()), ("CATTLE_AGENT_RETRIES", "2")];
    for (times, code, text, why) in
        [(2, 404, "", "failed 2 times, giving up"), (1, 200, "<html>log in</html>", "is not a script")]
    {
        let root = Root::new("none");
        server.answer_instead("/theirs.sh", times, code, text);
        let output = install(&server, &root, &env).await;
        assert!(!output.status.success() && said(&output).contains(why), "{}", said(&output));
        assert!(server.count(REGISTRATION) == 0 && root.is_untouched(), "{why}");
    }
    let root = Root::new("none");
    server.answer_instead("/theirs.sh", 1, 200, "#!/bin/sh\necho theirs\n");
    let output = install(&server, &root, &env).await;
    assert!(output.status.success(), "{}", said(&output));
    assert!(root.read("usr/local/bin/rancher-system-agent-uninstall.sh").contains("theirs"));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_synced_before_the_registration_and_the_start() {
    let server = Server::start().await;
    let root = Root::new("none");
    let at = |name: &str| root.at(name).display().to_string();
    let (id, unit) = (at(ID), at("etc/systemd/system/rancher-system-agent.service"));
    let [log, started] = [at("sync.log"), at("systemctl.log")];
    root.program(
        "sync",
        &format!("{{ echo called; ls {id} {unit} {started} 2>/dev/null; }} >> {log}; test \"$1\" != -f"),
    );
    server.answer_instead(REGISTRATION, 4, 401, "");
    let output = install(&server, &root, &[]).await;
    assert!(!output.status.success(), "{}", said(&output));
    // Syncs the file systems in question, and all if that fails.
    let first = format!("called\n{id}\n").repeat(2);
    assert_eq!(root.read("sync.log"), first, "before it was rejected");

    let output = install(&server, &root, &[]).await;
    assert!(output.status.success(), "{}", said(&output));
    let second = format!("called\n{id}\n{unit}\n").repeat(2);
    assert_eq!(root.read("sync.log"), format!("{first}{first}{second}"));
}
