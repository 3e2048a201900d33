//! The commands of `drover machine` with the local driver, on both stores.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};

use drover_local_machines::LocalDriver;
use drover_machine::{
    cli::{Cli, CreateArgs, Removal, table},
    driver::{Driver, PowerOp, State},
    store::{DiskStore, EXTRACTED_CONFIG, SecretClient, SecretData, SecretStore, Store, summary},
};
use support::{Rig, eventually, harness};

as_root_and_as_user! {
    commands_on_disk_and_secret_store_machine_drivers_check_6_29_30
}

fn commands_on_disk_and_secret_store_machine_drivers_check_6_29_30(rig: Rig) {
    let secrets = Secrets::default();
    let disk = DiskStore::new(rig.data_dir.join("store"));
    let secret = SecretStore::new(secrets.clone(), "fleet-default", "m-machine-state");
    let stores: [(&str, &dyn Store); 2] = [("on-disk", &disk), ("in-secret", &secret)];
    let driver = LocalDriver::new(&rig.data_dir, &harness());
    let find = |name: &str| (name == "local").then(|| Box::new(driver.clone()) as Box<dyn Driver>);
    let script = rig.data_dir.join("install.sh");
    std::fs::write(&script, "#!/bin/sh\necho installed >/root/installed\n").unwrap();
    for (name, store) in stores {
        let cli = Cli { store, driver: &find, known: None, env: &|_| None, sleep: &|_| () };
        let line = format!(
            "--driver=local --custom-install-script={} --hostname-override=host-{name} --local-cpus=1",
            script.display()
        );
        let host = cli.create(&args(&line, name)).unwrap();
        rig.until(name, "test -e /root/installed");
        let address = host.driver_text("IPAddress").to_owned();
        assert_eq!(cli.ip(name).unwrap(), address);
        assert_eq!(
            cli.create(&args(&line, name)).unwrap().config,
            host.config,
            "a second create adopts the machine"
        );
        assert_eq!(store.list().unwrap(), [name]);
        assert!(table(&cli.ls().unwrap()).contains(&format!("{name:<32} local        Running    {address}")));
        assert!(cli.inspect(name).unwrap().contains("    \"ConfigVersion\": 3,"));
        assert_eq!(cli.status(name).unwrap(), State::Running);
        assert_eq!(cli.ssh(name, &["exit".into(), "5".into()]).unwrap(), 5);
        assert_eq!(rig.sh(name, "hostname; cat /root/.ssh/authorized_keys").lines().count(), 2);
        assert_eq!(cli.power(name, PowerOp::Stop).unwrap(), State::Stopped);
        assert_eq!(cli.ssh(name, &[]).unwrap_err().code, 1);
        assert_eq!(cli.power(name, PowerOp::Start).unwrap(), State::Running);
        assert_eq!(cli.power(name, PowerOp::Restart).unwrap(), State::Running);
        assert_eq!(cli.power(name, PowerOp::Kill).unwrap(), State::Stopped);
        if name == "in-secret" {
            let packed = secrets.0.lock().unwrap().data[EXTRACTED_CONFIG].clone();
            let read = summary(&packed).unwrap().unwrap();
            assert_eq!(
                (read.ip, read.ssh_user, read.driver),
                (address, "root".to_owned(), "local".to_owned())
            );
        }
        // `rm` of a machine that does not exist succeeds; all other commands fail.
        assert_eq!(cli.rm(name, false).unwrap(), Removal::Removed);
        assert_eq!(cli.rm(name, false).unwrap(), Removal::Absent);
        for failure in
            [cli.ip(name).unwrap_err(), cli.status(name).unwrap_err(), cli.inspect(name).unwrap_err()]
        {
            assert_eq!(failure.code, 4, "{failure}");
        }
        assert!(store.list().unwrap().is_empty() && rig.local.list().unwrap().is_empty());
        // Rejected before anything is created.
        let failure = cli.create(&args("--driver=local --local-cpus=-1", name)).unwrap_err();
        assert_eq!((failure.code, failure.message.contains("--local-cpus=-1")), (3, true));
        assert_eq!(cli.create(&args("--driver=local --local-size=9", name)).unwrap_err().code, 3);
        assert_eq!(cli.create(&args("--driver=none", name)).unwrap_err().code, 1);
        assert!(store.list().unwrap().is_empty() && rig.local.list().unwrap().is_empty());
    }
    let packed = secrets.0.lock().unwrap().data[EXTRACTED_CONFIG].clone();
    assert_eq!(summary(&packed).unwrap(), None);
    // A machine whose state is in another store is managed too.
    let cli = Cli { store: &disk, driver: &find, known: Some(&driver), env: &|_| None, sleep: &|_| () };
    let machine = rig.create("elsewhere");
    assert_eq!(cli.ls().unwrap()[0].name, "elsewhere");
    assert_eq!(cli.ip("elsewhere").unwrap(), machine.ip.to_string());
    assert_eq!(cli.power("elsewhere", PowerOp::Stop).unwrap(), State::Stopped);
    assert!(disk.list().unwrap().is_empty(), "the store is unchanged");
    cli.rm("elsewhere", false).unwrap();
    assert_eq!(cli.status("elsewhere").unwrap_err().code, 4);
    eventually("no machine is left", || rig.local.list().unwrap().is_empty());
    rig.finish();
}

fn args(line: &str, name: &str) -> CreateArgs {
    // The data directory has spaces in its name: only split at flags.
    let mut words: Vec<String> =
        line.split(" --").map(|word| format!("--{}", word.trim_start_matches("--"))).collect();
    words.push(name.to_owned());
    CreateArgs::parse(&words).unwrap()
}

/// No row in `ls`, no lock file, no directory and no process.
#[test]
fn a_rejected_local_machine_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let store = DiskStore::new(data_dir.join("store"));
    let driver = LocalDriver::new(&data_dir, &harness());
    let find = |name: &str| (name == "local").then(|| Box::new(driver.clone()) as Box<dyn Driver>);
    let cli = Cli { store: &store, driver: &find, known: Some(&driver), env: &|_| None, sleep: &|_| () };
    let long = "m".repeat(80);
    for (line, name, said) in [
        ("--driver=local", long.as_str(), "up to 63 letters"),
        ("--driver=local --hostname-override=no_host", "m", "invalid host name"),
        ("--driver=local --local-cpus=-1", "m", "--local-cpus=-1 must not be negative"),
        ("--driver=local --local-nosuch=1", "m", "has no option --local-nosuch"),
        ("--driver=local --custom-install-script=/nonexistent", "m", "failed to read the install script"),
    ] {
        let failure = cli.create(&args(line, name)).unwrap_err();
        assert_eq!((failure.code, failure.message.contains(said)), (3, true), "{failure}");
        assert!(cli.ls().unwrap().is_empty() && !data_dir.exists(), "{line} {name}");
    }
}

#[derive(Clone, Default)]
struct Secrets(Arc<Mutex<SecretData>>);

impl SecretClient for Secrets {
    fn get(&self, _: &str, _: &str) -> Result<Option<SecretData>, String> {
        Ok(Some(self.0.lock().unwrap().clone()))
    }

    fn update(&self, _: &str, _: &str, secret: &SecretData) -> Result<(), String> {
        let mut stored = self.0.lock().unwrap();
        if stored.resource_version != secret.resource_version {
            return Err("conflict".to_owned());
        }
        *stored = secret.clone();
        stored.resource_version = format!("{}x", secret.resource_version);
        Ok(())
    }
}
