//! What goes wrong while the install script runs, and what must not follow from it.

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

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_is_refused_leaves_the_one_that_works() {
    let server = Server::start().await;
    let root = Root::new("none");
    let output = install(&server, &root, &[]).await;
    assert!(output.status.success(), "{}", said(&output));
    let before = root.read(CONFIG);
    // The last is no YAML.
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
        assert_eq!(beside, 2, "{wrong:?}: nothing but the configuration and the identity");
    }
}

/// Its answer is the same as to a token that is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_know_its_tokens_yet_is_asked_again() {
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
            // Something else in between: the server is just about to start.
            (&patient, &[(2, 401), (1, 503), (2, 401)]),
            // A page that is no connection: what was refused before does not count any more.
            (&[], &[(2, 401), (1, 200), (3, 401)]),
        ] {
            answers(given);
            let output = install(&server, &Root::new(without), env).await;
            assert!(output.status.success(), "without {without} {given:?}: {}", said(&output));
        }
        // Refused for good after it has registered: the server knows the machine by its identity, which therefore stays.
        let root = Root::new(without);
        answers(&[(1, 200), (4, 401)]);
        let output = install(&server, &root, &[]).await;
        let text = said(&output);
        assert!(!output.status.success() && text.contains("refuses the token (--token)"), "{text}");
        assert!(!text.contains("nothing was installed") && root.at(ID).exists(), "without {without}: {text}");
    }
}

/// The values would be the same the next time.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_the_server_refuses_end_the_installation_at_once_with_its_sentence() {
    let server = Server::start().await;
    let why = "label zone: the value \"bad/value\" is not one; node name \"M\u{fc}ller\"";
    for without in one_client_each() {
        let said_so = format!("{why}\n\u{1b}");
        for (code, body, told) in [
            (400, said_so.clone(), why),
            (403, said_so.clone(), why),
            (409, said_so, why),
            (400, String::new(), "it does not say why"),
        ] {
            let root = Root::new(without);
            server.requests.lock().unwrap().clear();
            // What it said before is not what it says now.
            server.answer_instead(REGISTRATION, 1, 503, "later");
            server.answer_instead(REGISTRATION, 1, code, &body);
            let output = install(&server, &root, &[]).await;
            let text = said(&output);
            let expected =
                format!("[FATAL] {} refuses what it was given: {told}; nothing was installed\n", server.url);
            assert!(!output.status.success() && text.ends_with(&expected), "without {without}: {text}");
            assert!(server.count(REGISTRATION) == 2 && root.is_untouched(), "without {without}: {text}");
        }
        // Neither are other numbers in an answer, nor errors that pass, taken for it.
        let root = Root::new(without);
        server.answer_instead(REGISTRATION, 2, 503, "error: 400 ERROR 400");
        let output = install(&server, &root, &[]).await;
        assert!(output.status.success(), "without {without}: {}", said(&output));
    }
}

/// Its own pause is so long that the test would fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_asked_too_often_says_when_to_come_back() {
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
async fn an_uninstall_script_that_cannot_be_had_is_told_before_the_server_hears_of_the_machine() {
    let server = Server::start().await;
    let url = format!("{}/theirs.sh", server.url);
    let env = [("CATTLE_AGENT_UNINSTALL_URL", url.as_str()), ("CATTLE_AGENT_RETRIES", "2")];
    for (times, code, text, why) in
        [(2, 404, "", "failed 2 times, giving up"), (1, 200, "<html>log in</html>", "is no script")]
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
async fn what_the_server_and_systemd_are_told_of_is_on_disk_before() {
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
    // Tried for the file systems in question, then for all, since this one cannot do better.
    let first = format!("called\n{id}\n").repeat(2);
    assert_eq!(root.read("sync.log"), first, "before it was refused");

    let output = install(&server, &root, &[]).await;
    assert!(output.status.success(), "{}", said(&output));
    let second = format!("called\n{id}\n{unit}\n").repeat(2);
    assert_eq!(root.read("sync.log"), format!("{first}{first}{second}"));
}
