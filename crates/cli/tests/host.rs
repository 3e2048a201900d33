//! Problems of the host: ports, data directories, disks and namespaces. Each error includes the fix, and nothing is
//! lost.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use common::server::{PrivateMount, Server, has_kubectl, one_sentence, spawn};
use common::{Identity, Person, eventually, run, when};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn a_port_or_data_directory_in_use_and_a_newer_one() {
    let Some(person) = Person::new(Identity::User) else { return };
    let mut server = Server::start(person);
    let address = server.address();
    let other = server.person.home().join("other");
    let other = other.to_str().unwrap();
    for command in ["server", "quickstart"] {
        one_sentence(
            server.person.drover(&[command, "--data-dir", other, "--bind", &address]),
            &[&format!("{address} is in use by another program"), "--bind ADDR:PORT"],
        );
        assert!(!std::path::Path::new(other).exists(), "{command} left files behind");
        one_sentence(
            server.person.drover(&[command, "--bind", "127.0.0.1:0"]),
            &["is in use by another server", "choose another directory"],
        );
    }
    server.stop();

    // The schema version of an SQLite file is in its header.
    let store = server.person.data_dir.join("db/store.db");
    let version = |value: u32| {
        let file = fs::OpenOptions::new().read(true).write(true).open(&store).unwrap();
        let mut before = [0; 4];
        file.read_exact_at(&mut before, 60).unwrap();
        file.write_all_at(&value.to_be_bytes(), 60).unwrap();
        u32::from_be_bytes(before)
    };
    let known = version(999);
    let content = fs::read(&store).unwrap();
    for command in ["server", "quickstart"] {
        one_sentence(
            server.person.drover(&[command, "--bind", "127.0.0.1:0"]),
            &["has schema version 999", &format!("supports up to {known}"), "use the newer release"],
        );
    }
    assert!(fs::read(&store).unwrap() == content, "a store of a newer version was changed");
    version(known);
    server.process = spawn(&server.person, &mut server.person.command(server.person.binary()));
}

#[test]
fn addresses_that_cannot_be_bound_are_reported() {
    let Some(person) = Person::new(Identity::User) else { return };
    for command in ["server", "quickstart"] {
        one_sentence(
            person.drover(&[command, "--bind", "192.0.2.1:0"]),
            &["192.0.2.1:0 is not assigned to this host", "--bind ADDR:PORT"],
        );
        // In its own network namespace and without capabilities, whatever this host allows.
        let script = "exec setpriv --bounding-set -all --inh-caps -all \"$0\" \"$1\" --bind 0.0.0.0:443";
        let mut low = person.command("unshare");
        low.args(["--user", "--map-root-user", "--net", "sh", "-c", script])
            .arg(person.binary())
            .arg(command);
        one_sentence(
            run(&mut low, &format!("drover {command} --bind 0.0.0.0:443")),
            &[
                "permission denied for 0.0.0.0:443",
                "ports below 1024 are reserved for root",
                "--bind ADDR:PORT",
            ],
        );
        for wrong in ["8443", ":8443", "nonsense", "127.0.0.1", "127.0.0.1:99999"] {
            let output = person.drover(&[command, "--bind", wrong]).refused();
            assert!(output.contains(wrong) && output.contains("such as 127.0.0.1:8443"), "{output}");
        }
    }
}

#[test]
fn a_damaged_store_is_reported_and_kept() {
    let Some(person) = Person::new(Identity::User) else { return };
    let mut server = Server::start(person);
    server.stop();
    let person = &server.person;
    let store = person.data_dir.join("db/store.db");
    let whole = fs::read(&store).unwrap();
    let garbage = vec![0xa5; whole.len()];
    let damages = [
        vec![],
        garbage.clone(),
        whole[..whole.len() / 2].to_vec(),
        whole[..50].to_vec(),
        [&whole[..4096], &garbage[4096..]].concat(),
    ];
    let (path, db) = (store.display().to_string(), person.data_dir.join("db").display().to_string());
    let delete = format!("drover quickstart --delete --data-dir {}", person.data_dir.display());
    for damage in &damages {
        fs::write(&store, damage).unwrap();
        for command in [&["server"][..], &["quickstart"], &["quickstart", "--detach"]] {
            let words = [command, &["--bind", "127.0.0.1:0"]].concat();
            let remedy =
                [&format!("the store {path} is damaged"), &format!("restore a copy of {db}"), &delete];
            one_sentence(person.drover(&words), &remedy.map(String::as_str));
            assert!(fs::read(&store).unwrap() == *damage, "{command:?} changed a damaged store");
        }
    }
    // The advice works: restoring a copy, and starting with an empty directory.
    fs::write(&store, whole).unwrap();
    server.process = spawn(&server.person, &mut server.person.command(server.person.binary()));
    server.stop();
    fs::write(&store, garbage).unwrap();
    assert!(server.person.drover(&["quickstart", "--delete"]).ok().contains("removed everything"));
    assert!(!server.person.data_dir.exists());
}

#[test]
fn only_files_of_drover_are_deleted() {
    let Some(person) = Person::new(Identity::User) else { return };
    let make = |script: &str| run(person.command("sh").args(["-c", script]), script).ok();
    let home = person.home().to_owned();
    let at = |name: &str| home.join(name).display().to_string();

    // Not a data directory: other programs have a `local` and a `db`, too.
    make(
        "mkdir -p foreign/local/bin foreign/db && echo x >foreign/local/bin/tool && echo y >foreign/db/y.sql",
    );
    one_sentence(
        person.drover(&["quickstart", "--delete", "--data-dir", &at("foreign")]),
        &[&at("foreign"), "is not a data directory of drover; nothing was deleted"],
    );
    let files = make("cd foreign && find . -type f | sort && cat db/y.sql local/bin/tool");
    assert_eq!(files, "./db/y.sql\n./local/bin/tool\ny\nx\n");
    let file = person.write("file", "");
    one_sentence(
        person.drover(&["quickstart", "--delete", "--data-dir", &file]),
        &[&file, "cannot be deleted"],
    );

    // If nothing is to be done, the command says so and succeeds.
    make("mkdir empty");
    for (name, why) in [("empty", "is empty"), ("missing", "does not exist")] {
        let output = person.drover(&["quickstart", "--delete", "--data-dir", &at(name)]).ok();
        assert!(
            output.contains("nothing to delete") && output.contains(&at(name)) && output.contains(why),
            "{output}"
        );
        let output = person.drover(&["quickstart", "--stop", "--data-dir", &at(name)]).ok();
        assert!(output.contains("no quickstart was running") && output.contains(&at(name)), "{output}");
    }
    assert_eq!(make("ls -A empty; ls -d empty missing 2>/dev/null || true"), "empty\n");

    // Refused while a server is running.
    let mut server = Server::start(person);
    one_sentence(
        server.person.drover(&["quickstart", "--delete"]),
        &[&format!("a server (process {}) is running in", server.process.id()), "nothing was deleted"],
    );
    assert!(!server.person.data_dir.join("quickstart.pid").exists(), "a refused --delete left a file");
    server.person.drover(&["get", "clusters"]).ok();
    server.stop();

    // Files of the user are kept.
    let notes = server.person.data_dir.join("notes.txt");
    fs::write(&notes, "mine").unwrap();
    let output = server.person.drover(&["quickstart", "--delete"]).ok();
    assert!(output.contains("because it contains other files: notes.txt"), "{output}");
    let left: Vec<_> = fs::read_dir(&server.person.data_dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left, std::slice::from_ref(&notes));
    fs::remove_file(notes).unwrap();
    fs::remove_dir(&server.person.data_dir).unwrap();
}

#[test]
fn a_data_directory_with_a_colon_in_its_path_is_refused() {
    let Some(person) = Person::new(Identity::User) else { return };
    let path = person.home().join("a:b");
    let path = path.to_str().unwrap();
    for words in [
        &["server", "--bind", "127.0.0.1:0"][..],
        &["quickstart", "--bind", "127.0.0.1:0"],
        &["quickstart", "--bind", "127.0.0.1:0", "--detach"],
        &["machine", "create", "--driver", "local", "m"],
    ] {
        let answer = run(person.command(person.binary()).args(words).env("DROVER_DATA_DIR", path), "drover");
        one_sentence(answer, &[path, "its path has a \":\"", "KUBECONFIG", "--data-dir"]);
    }
    assert!(!std::path::Path::new(path).exists());
}

#[test]
fn the_limit_of_open_files_is_raised_or_reported() {
    let Some(person) = Person::new(Identity::User) else { return };
    let limited = |limit: &str, words: &str| {
        let mut command = person.command("sh");
        command.args(["-c", &format!("ulimit {limit} && exec \"$0\" {words}")]).arg(person.binary());
        command
    };
    for words in ["server --bind 127.0.0.1:0", "quickstart --bind 127.0.0.1:0"] {
        one_sentence(
            run(&mut limited("-n 64", words), words),
            &["the limit on open files is 64", "ulimit -Hn"],
        );
    }
    // Machines are created by other roles of the program, which need open files as well.
    let answer = run(&mut limited("-n 64", "machine create --driver local m"), "machine create");
    assert!(answer.err.contains("the limit on open files is 64"), "{}", answer.err);
    let mut server = limited("-S -n 64", "\"$@\"");
    let mut server = spawn(&person, &mut server);
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let _ = server.kill();
    let _ = server.wait();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line}");
}

/// A pipe whose reader has exited, as after `| head -1`.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Whether a process handles a signal.
fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    caught & (1 << (signal as i32 - 1)) != 0
}

#[test]
fn a_closed_stdout_or_stderr_is_not_an_error() {
    let Some(person) = Person::new(Identity::User) else { return };
    for words in [&["machine", "ls"][..], &["quickstart", "--stop"]] {
        let answer = run(person.command(person.binary()).args(words).stdout(closed_pipe()), &words.join(" "));
        assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{}", answer.words);
    }
    for words in [&["machine", "status", "nosuch"][..], &["get", "clusters"]] {
        let answer = run(person.command(person.binary()).args(words).stderr(closed_pipe()), &words.join(" "));
        assert!([1, 4].contains(&answer.code), "{}: {}", answer.words, answer.code);
    }
    // Long-running commands continue, and stop at a signal.
    for (command, done) in [("quickstart", "demo"), ("server", "")] {
        let _ = fs::remove_file(person.data_dir.join("kubeconfig.yaml"));
        let mut process = person.command(person.binary());
        process.args([command, "--bind", "127.0.0.1:0"]).stdin(Stdio::null());
        let mut process = process.stdout(closed_pipe()).stderr(closed_pipe()).spawn().unwrap();
        eventually(|| {
            assert!(process.try_wait().unwrap().is_none(), "{command} ended");
            let answer = person.drover(&["get", "clusters"]);
            let listens = catches(process.id(), Signal::SIGTERM);
            when(answer.code == 0 && answer.out.contains(done) && listens, answer.err)
        });
        kill(Pid::from_raw(process.id() as i32), Signal::SIGTERM).unwrap();
        let status = eventually(|| process.try_wait().unwrap().ok_or("it runs"));
        assert_eq!(status.code(), Some(0), "{command}");
    }
}

#[test]
fn a_full_disk_is_reported_and_nothing_is_lost() {
    if !has_kubectl() {
        return;
    }
    let Some(person) = Person::new(Identity::Root) else { return };
    let (drover, data) =
        (person.binary().to_str().unwrap().to_owned(), person.data_dir.display().to_string());
    // Local machines keep a copy of the program; the store needs little space in addition.
    let size = fs::metadata(&drover).unwrap().len() / (1 << 20) + 32;
    fs::create_dir(&person.data_dir).unwrap();
    let mount = PrivateMount::new(&format!("mount -t tmpfs -o size={size}m none {data}"));
    let kubectl = |words: &[&str]| {
        let mut command = mount.command(&person, "kubectl");
        command.args(["--kubeconfig", &format!("{data}/kubeconfig.yaml")]).args(words);
        run(&mut command, &format!("kubectl {}", words.join(" ")))
    };
    let fill = |name: &str| {
        let mut command = mount.command(&person, "dd");
        command.args(["if=/dev/zero", &format!("of={data}/{name}"), "bs=16k"]);
        assert!(run(&mut command, "dd").err.contains("No space left"));
    };
    let remove = |name: &str| {
        let mut command = mount.command(&person, "rm");
        run(command.arg(format!("{data}/{name}")), "rm").ok();
    };
    let big = person.write("big", &"x".repeat(500_000));

    let mut server = spawn(&person, &mut mount.command(&person, &drover));
    kubectl(&["create", "configmap", "before", "--from-literal=a=b"]).ok();
    fill("filler");
    let output = kubectl(&["create", "configmap", "during", "--from-file", &big]).refused();
    assert!(output.contains("the change was not stored") && output.contains("disk is full"), "{output}");
    assert_ne!(kubectl(&["get", "--raw", "/readyz"]).code, 0, "a server that cannot write is ready");
    assert_eq!(kubectl(&["get", "configmap", "before", "-o", "jsonpath={.data.a}"]).ok(), "b");
    assert_ne!(kubectl(&["get", "configmap", "during"]).code, 0, "a rejected object exists");
    let log = fs::read_to_string(person.home().join("server.out")).unwrap();
    assert!(log.contains("no space left for the store"), "{log}");

    // With free space, it continues by itself.
    remove("filler");
    eventually(|| {
        let answer = kubectl(&["create", "configmap", "after", "--from-file", &big]);
        when(answer.code == 0, answer.err)
    });
    eventually(|| {
        let answer = kubectl(&["get", "--raw", "/readyz"]);
        when(answer.code == 0, answer.err)
    });

    // A server that was killed and is started while the disk is full reports it in one sentence. With free space,
    // everything is there.
    fill("filler");
    server.kill().unwrap();
    server.wait().unwrap();
    let mut command = mount.command(&person, &drover);
    let answer = run(command.args(["server", "--bind", "127.0.0.1:0"]), "drover server");
    assert!(answer.refused().to_lowercase().contains("no space left"));
    remove("filler");
    let mut server = spawn(&person, &mut mount.command(&person, &drover));
    for name in ["before", "after"] {
        kubectl(&["get", "configmap", name]).ok();
    }
    server.kill().unwrap();
    server.wait().unwrap();
    // No process needs a network for machines any more.
    eventually(|| when(!person.processes().iter().any(|words| words.contains("machine-holder")), "a holder"));
}

#[test]
fn a_disk_too_small_for_a_quickstart_is_reported() {
    let Some(person) = Person::new(Identity::Root) else { return };
    let (drover, data) =
        (person.binary().to_str().unwrap().to_owned(), person.data_dir.display().to_string());
    fs::create_dir(&person.data_dir).unwrap();
    // Full before the start, full while writing the store, and too small for the machines' copy of the program.
    for (size, filler) in [("64k", "dd if=/dev/zero of=filler bs=4k 2>/dev/null;"), ("1m", ""), ("8m", "")] {
        let mount = PrivateMount::new(&format!(
            "mount -t tmpfs -o size={size} none {data} && cd {data} && {{ {filler} true; }}"
        ));
        let mut command = mount.command(&person, &drover);
        one_sentence(
            run(command.args(["quickstart", "--bind", "127.0.0.1:0"]), &format!("quickstart in {size}")),
            &[
                "no space left for data directory",
                &data,
                "free some space, or choose another directory with --data-dir",
            ],
        );
        let mut command = mount.command(&person, &drover);
        let output = run(command.args(["quickstart", "--delete"]), "quickstart --delete").ok();
        assert!(
            output.contains(if filler.is_empty() { "removed everything except" } else { "filler" }),
            "{output}"
        );
        eventually(|| {
            let left: Vec<_> =
                person.processes().into_iter().filter(|words| words.contains("drover")).collect();
            when(left.iter().all(|words| words.contains("sleep infinity")), left)
        });
    }
}

#[test]
fn forbidden_user_namespaces_are_reported() {
    let Some(person) = Person::new(Identity::User) else { return };
    // In a user namespace whose limit is 0 and without capabilities, no process can create another one. The kernel
    // returns ENOSPC, which is not a full disk here.
    let script = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -all --inh-caps -all \
                  \"$0\" quickstart --bind 127.0.0.1:0 \"$@\"";
    for flags in [&[][..], &["--detach"]] {
        let mut command = person.command("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", script]).arg(person.binary()).args(flags);
        let answer = run(&mut command, &format!("drover quickstart {flags:?}"));
        let begins = "drover: local machines are not possible here: local machines need a user namespace";
        assert!(answer.err.starts_with(begins), "{}", answer.err);
        one_sentence(answer, &["user.max_user_namespaces is 0: set it to 10000", "sysctl -w"]);
        eventually(|| when(person.processes().is_empty(), person.processes()));
    }
}

#[test]
fn a_data_directory_that_cannot_hold_machines_is_reported() {
    let Some(person) = Person::new(Identity::Root) else { return };
    let data = person.data_dir.display().to_string();
    for (mount, cause) in [
        ("mkdir u w l && mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w", "itself an overlay"),
        ("mount -t tmpfs -o noexec none", "mounted noexec"),
    ] {
        let script = format!("{mount} \"$1\" && exec \"$0\" quickstart --bind 127.0.0.1:0");
        fs::create_dir(&data).unwrap();
        let mut command = person.command("unshare");
        command.args(["--mount", "sh", "-c", &script]).arg(person.binary()).arg(&data);
        one_sentence(run(&mut command, "drover quickstart"), &[cause, "choose another with --data-dir"]);
        eventually(|| when(person.processes().is_empty(), person.processes()));
        fs::remove_dir(&data).unwrap();
    }
}
