use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::*;

fn of_env(env: &[&str]) -> Redactor {
    let mut redactor = Redactor::default();
    redactor.env(env.iter().copied());
    redactor
}

fn file(path: &str, permissions: &str, content: &str) -> File {
    File {
        path: path.into(),
        permissions: permissions.into(),
        content: STANDARD.encode(content),
        ..File::default()
    }
}

#[test]
fn values_with_secret_names_are_hidden() {
    let redactor = of_env(&[
        "K3S_TOKEN=abc123def",
        "RESTART_STAMP=fffffff",
        "X_SECRET=yes",
        "broken",
        "DBPASS=DbPassS3cr3t",
        "S_TOKEN=5char",
        "ML_SECRET=first line\nsecond line\n",
        "DATASTORE_ENDPOINT=postgres://u:DsPassS3cr3t@h/db",
        "TLS_KEY=/etc/ssl/tls.key",
        "USE_AUTH=true",
        "PW=shortpw",
    ]);
    for (text, shown) in [
        ("t=abc123def s=fffffff yes", "t=[redacted] s=fffffff yes"),
        ("+ psql --password DbPassS3cr3t 5char", "+ psql --password [redacted] [redacted]"),
        ("  second line", "  [redacted]"),
        ("my shortpw", "my [redacted]"),
        ("postgres://u:DsPassS3cr3t@h/db or DsPassS3cr3t", "postgres://u:[redacted]@h/db or [redacted]"),
        ("true /etc/ssl/tls.key", "true /etc/ssl/tls.key"),
    ] {
        assert_eq!(redactor.clean(text), shown);
    }
}

#[test]
fn values_of_an_environment_are_hidden_under_any_name() {
    let redactor = of_env(&[
        "INSTALL_K3S_EXEC=agent --token SECRETflag --server https://x",
        r#"JSON={"password":"SECRETjson"}"#,
        "CONF=token=SECRETconf",
        "TOK=SECRETenv1",
        "LICENSE=correct horse battery",
        "DOC=first line\nshort\n  second line\r\n",
        "ODD=$ecretpass1",
        "X_URL=https://h/x?password=SECRETquery",
        "HTTPS_PROXY=http://u:SECRETproxy@proxy:3128",
        "CATTLE_AGENT_TOKEN=SECRETagent",
    ]);
    for (text, shown) in [
        ("+ k3s agent --token SECRETflag", "+ k3s agent --token [redacted]"),
        ("agent --token SECRETflag --server https://x", "[redacted]"),
        ("password SECRETjson conf SECRETconf", "password [redacted] conf [redacted]"),
        ("tok=SECRETenv1 correct horse battery", "tok=[redacted] [redacted]"),
        (r#"<{"password":"SECRETjson"}>"#, "<[redacted]>"),
        ("first line", "[redacted]"),
        ("a second line", "a [redacted]"),
        ("short", "short"),
        ("$ecretpass1 SECRETquery", "[redacted] [redacted]"),
        ("http://u:SECRETproxy@proxy:3128 or SECRETproxy", "http://u:[redacted]@proxy:3128 or [redacted]"),
        ("SECRETagent", "[redacted]"),
    ] {
        assert_eq!(redactor.clean(text), shown);
    }
}

#[test]
fn ordinary_values_of_an_environment_are_shown() {
    let env = [
        "PATH=/usr/local/bin:/usr/bin",
        "LANG=en_GB.UTF-8",
        "INSTALL_K3S_VERSION=v1.34.1+k3s1",
        "INSTALL_K3S_SKIP_START=true",
        "INSTALL_K3S_EXEC=server",
        "K3S_URL=https://10.0.0.1:6443",
        "K3S_NODE_NAME=pool-1-abcde",
        "NO_PROXY=localhost,.svc,10.0.0.0/8",
        "CATTLE_AGENT_STRICT_VERIFY=whatever",
        "STARTED_AT=1700000000",
        "ROOT=/var/lib/rancher/k3s",
        "PEER=node-1.example.com:9345",
    ];
    let redactor = of_env(&env);
    for entry in env {
        assert_eq!(redactor.clean(entry), entry);
    }
}

#[test]
fn a_secret_inside_another_one_is_hidden_completely() {
    for env in [["A_TOKEN=node", "B_TOKEN=node::secret"], ["B_TOKEN=node::secret", "A_TOKEN=node"]] {
        assert_eq!(of_env(&env).clean("node::secret of a node"), "[redacted] of a [redacted]");
    }
}

#[test]
fn lines_of_private_files_are_hidden() {
    let config = "server: https://10.0.0.1:9345\ntoken: K10abc::server:xyz\nok: 1\n";
    let redactor = Redactor::of_files(&[
        file("/etc/rancher/config.yaml", "", config),
        file("/etc/one", "600", "one-line-secret\n"),
        file("/etc/motd", "644", "Welcome to this machine\npassword: hunter2\n"),
        file("/etc/db-password", "0644", "db-password-line\n"),
        file("/usr/bin/x", "0700", "#!/bin/sh\nX_TOKEN=abcd1234\nsystemctl restart k3s\n"),
    ]);
    for (text, shown) in [
        ("server: https://10.0.0.1:9345", "[redacted]"),
        ("12:  server: https://10.0.0.1:9345 ", "12:[redacted]"),
        ("joining K10abc::server:xyz now", "joining [redacted] now"),
        ("ok: 1", "ok: 1"),
        ("<one-line-secret>", "<[redacted]>"),
        ("Welcome to this machine", "Welcome to this machine"),
        ("I say hunter2", "I say [redacted]"),
        ("db-password-line", "[redacted]"),
        ("+ systemctl restart k3s abcd1234", "+ systemctl restart k3s [redacted]"),
    ] {
        assert_eq!(redactor.clean(text), shown);
    }
}

#[test]
fn secrets_of_arguments_and_scripts_are_hidden() {
    let mut redactor = Redactor::default();
    redactor.args(["join", "--token", "tok-1234", "--api-key=key-1234", "--name", "node-1"]);
    redactor.text("set -x\nDBPASS=inline-pass psql");
    assert_eq!(
        redactor.clean("tok-1234 key-1234 node-1 inline-pass psql"),
        "[redacted] [redacted] node-1 [redacted] psql"
    );
}

#[test]
fn a_header_in_the_plan_does_not_reveal_other_tokens() {
    let mut redactor = Redactor::default();
    redactor.text(
        "echo \"> Authorization: Bearer $T\"\ncurl -H 'Authorization: Basic dXNlcg==' x --token flag-token",
    );
    redactor.text("mysql -u root; password=mid-line; true");
    for (text, shown) in [
        ("> Authorization: Bearer eyJFETCHED", "> Authorization: Bearer [redacted]"),
        ("Proxy: Bearer eyJother7", "Proxy: Bearer [redacted]"),
        ("Authorization: Basic Zm9vOmJhcg==", "Authorization: Basic [redacted]"),
        ("user dXNlcg== flag-token mid-line", "user [redacted] [redacted] [redacted]"),
    ] {
        assert_eq!(redactor.clean(text), shown);
    }
}

#[test]
fn a_long_line_is_cut_before_a_secret() {
    let mut redactor = of_env(&["A_TOKEN=first-token", "B_TOKEN=token-second"]);
    let line = format!("{}first-token-second{}", "x".repeat(95), "y".repeat(5000));
    for length in 90..=95 {
        assert_eq!(redactor.clean_start(&line, length), ("x".repeat(length), length));
    }
    for length in 96..113 {
        assert_eq!(redactor.clean_start(&line, length), ("x".repeat(95), 95), "{length}");
    }
    assert_eq!(redactor.clean_start(&line, 113), (format!("{}[redacted]", "x".repeat(95)), 113));
    assert_eq!(redactor.clean_start("first-token é", 99).0, "[redacted] é");
    assert_eq!(redactor.clean_start(&"é".repeat(50), 5).1, 4);
    let header = format!("Authorization: Bearer {}", "t".repeat(9000));
    assert_eq!(redactor.clean_start(&header, 8192).0, "Authorization: Bearer ");
    assert!(redactor.reach() >= 12);
    // A long line of a private file is hidden completely.
    let long = "k".repeat(20_000);
    redactor = Redactor::of_files(&[file("/etc/x.yaml", "600", &format!("a: b-c-d-e-f\ncert: {long}\n"))]);
    assert!(redactor.reach() >= 20_000);
    assert_eq!(redactor.clean_start(&format!("+ cert: {long} and more"), 8192).0, "+ ");
}

#[test]
fn a_cut_line_of_a_private_file_is_hidden() {
    let line = format!("certificate-data: {}", "q".repeat(700));
    let redactor =
        Redactor::of_files(&[file("/etc/x.yaml", "600", &format!("kind: Config\n{line}\nend: of it\n"))]);
    assert_eq!(redactor.clean_start(&line, 512), ("[redacted]".into(), line.len()));
    let numbered = format!("12: {line}");
    assert_eq!(redactor.clean_start(&numbered, 512), ("12:[redacted]".into(), numbered.len()));
    // The text before it can be long.
    let late = format!("{} {line}", "x".repeat(600));
    assert_eq!(redactor.clean_start(&late, 512), ("x".repeat(512), 512));
    assert_eq!(redactor.clean_start(&late, 700), (format!("{} [redacted]", "x".repeat(600)), late.len()));
}

#[test]
fn secrets_of_files_are_found_in_every_encoding_and_action() {
    let private = |action: &str, content: &str| {
        let mut encoded = STANDARD.encode(content);
        encoded.insert(4, '\n');
        let file = File { action: action.into(), content: encoded, ..file("/etc/x", "600", "") };
        Redactor::of_files(&[file])
    };
    for action in ["", "create", "Delete"] {
        assert_eq!(
            private(action, "one-line-secret").clean("is one-line-secret"),
            "is [redacted]",
            "{action}"
        );
    }
    assert_eq!(private("delete", "one-line-secret").clean("one-line-secret"), "one-line-secret");
}
