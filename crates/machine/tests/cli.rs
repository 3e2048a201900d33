//! The verbs of `drover machine`: with the local driver on both stores, and with a driver that fails on demand.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drover_machine::{
    cli::{Cli, CreateArgs, Failure, Removal, table},
    driver::{Addresses, Driver, DriverError, DriverState, MachineRequest, PowerOp, Progress, State},
    flags::Flag,
    host::Host,
    local::LocalDriver,
    store::{DiskStore, EXTRACTED_CONFIG, SecretClient, SecretData, SecretStore, Store, summary},
};
use support::{Rig, eventually, harness};

as_root_and_as_user! {
    verbs_on_disk_and_secret_store_machine_drivers_check_6_29_30
}

fn verbs_on_disk_and_secret_store_machine_drivers_check_6_29_30(rig: Rig) {
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
        assert_eq!(cli.create(&args(&line, name)).unwrap().config, host.config, "a second create adopts");
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
        // `rm` of what is not there is left to the caller, everything else fails.
        assert_eq!(cli.rm(name, false).unwrap(), Removal::Removed);
        assert_eq!(cli.rm(name, false).unwrap(), Removal::Absent);
        for failure in
            [cli.ip(name).unwrap_err(), cli.status(name).unwrap_err(), cli.inspect(name).unwrap_err()]
        {
            assert_eq!(failure.code, 4, "{failure}");
        }
        assert!(store.list().unwrap().is_empty() && rig.local.list().unwrap().is_empty());
        // Refused before anything is made.
        let failure = cli.create(&args("--driver=local --local-cpus=-1", name)).unwrap_err();
        assert_eq!((failure.code, failure.message.contains("--local-cpus=-1")), (3, true));
        assert_eq!(cli.create(&args("--driver=local --local-size=9", name)).unwrap_err().code, 3);
        assert_eq!(cli.create(&args("--driver=none", name)).unwrap_err().code, 1);
        assert!(store.list().unwrap().is_empty() && rig.local.list().unwrap().is_empty());
    }
    let packed = secrets.0.lock().unwrap().data[EXTRACTED_CONFIG].clone();
    assert_eq!(summary(&packed).unwrap(), None);
    // A machine whose state is elsewhere is served all the same.
    let cli = Cli { store: &disk, driver: &find, known: Some(&driver), env: &|_| None, sleep: &|_| () };
    let machine = rig.create("elsewhere");
    assert_eq!(cli.ls().unwrap()[0].name, "elsewhere");
    assert_eq!(cli.ip("elsewhere").unwrap(), machine.ip.to_string());
    assert_eq!(cli.power("elsewhere", PowerOp::Stop).unwrap(), State::Stopped);
    assert!(disk.list().unwrap().is_empty(), "the store stays as it is");
    cli.rm("elsewhere", false).unwrap();
    assert_eq!(cli.status("elsewhere").unwrap_err().code, 4);
    eventually("nothing is left in the network", || rig.local.list().unwrap().is_empty());
    rig.finish();
}

fn args(line: &str, name: &str) -> CreateArgs {
    // The data directory has spaces in it: only the flags are split.
    let mut words: Vec<String> =
        line.split(" --").map(|word| format!("--{}", word.trim_start_matches("--"))).collect();
    words.push(name.to_owned());
    CreateArgs::parse(&words).unwrap()
}

#[test]
fn words_of_create_are_understood() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let parsed = CreateArgs::parse(&words("-d local --custom-install-script /s --x-y z m1")).unwrap();
    assert_eq!((parsed.driver.as_str(), parsed.name.as_str()), ("local", "m1"));
    assert_eq!((parsed.custom_install_script.as_str(), parsed.driver_args), ("/s", words("--x-y z")));
    assert!(CreateArgs::parse(&words("--driver=local")).unwrap_err().message.contains("name"));
}

/// The state is saved before and after every step, so nothing that was made is forgotten.
#[test]
fn failed_create_keeps_the_id_and_resumes_machine_drivers_check_10_11_13() {
    let dir = tempfile::tempdir().unwrap();
    let (store, cloud) = (DiskStore::new(dir.path()), Cloud::default());
    let cli = cloud.clone();
    let find = move |_: &str| Some(Box::new(cli.clone()) as Box<dyn Driver>);
    let slept = Mutex::new(Vec::new());
    let sleep = |span: Duration| slept.lock().unwrap().push(span);
    let cli = Cli { store: &store, driver: &find, known: None, env: &|_| None, sleep: &sleep };
    let create =
        || cli.create(&CreateArgs { driver: "cloud".into(), name: "m".into(), ..CreateArgs::default() });
    cloud.script(&["make, then lose the answer"]);
    assert_eq!(create().unwrap_err(), Failure { code: 1, message: "connection reset".into() });
    assert_eq!(store.load("m").unwrap().unwrap().driver_text("ClientToken"), "token-m");
    cloud.script(&["starting", "starting", "running"]);
    let host = create().unwrap();
    assert_eq!(host.driver_text("InstanceId"), "i-1");
    assert_eq!(cloud.made(), 1, "the instance was adopted");
    assert_eq!(*slept.lock().unwrap(), [Duration::from_secs(7); 2]);
    // A removal that fails keeps everything; one that is repeated finds nothing.
    cloud.script(&["fail"]);
    assert_eq!(cli.rm("m", false).unwrap_err().message, "quota of patience exceeded");
    assert!(store.load("m").unwrap().is_some());
    cloud.script(&["stopping", "gone"]);
    cli.rm("m", false).unwrap();
    cli.rm("m", false).unwrap();
    assert_eq!((cloud.made(), store.list().unwrap().len()), (0, 0));
}

#[test]
fn a_failed_check_before_creation_leaves_nothing_machine_drivers_check_9() {
    let dir = tempfile::tempdir().unwrap();
    let (store, cloud) = (DiskStore::new(dir.path()), Cloud::default());
    let other = cloud.clone();
    let find = move |_: &str| Some(Box::new(other.clone()) as Box<dyn Driver>);
    let cli = Cli { store: &store, driver: &find, known: None, env: &|_| None, sleep: &|_| () };
    let objection = "InvalidSubnetID.NotFound: the subnet ID 'subnet-1' does not exist";
    cloud.0.lock().unwrap().objection = Some(objection);
    let args = CreateArgs { driver: "cloud".into(), name: "m".into(), ..CreateArgs::default() };
    assert_eq!(cli.create(&args).unwrap_err(), Failure { code: 3, message: objection.into() });
    assert_eq!((cloud.made(), store.list().unwrap().len()), (0, 0));
    // Removal has nothing to ask the provider about: a question without an answer would panic.
    assert_eq!(cli.rm("m", false).unwrap(), Removal::Absent);
}

/// Not a row in `ls`, not a lock, not a directory, not a process.
#[test]
fn a_local_machine_that_is_refused_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let store = DiskStore::new(data_dir.join("store"));
    let driver = LocalDriver::new(&data_dir, &harness());
    let find = |name: &str| (name == "local").then(|| Box::new(driver.clone()) as Box<dyn Driver>);
    let cli = Cli { store: &store, driver: &find, known: Some(&driver), env: &|_| None, sleep: &|_| () };
    let long = "m".repeat(80);
    for (line, name, said) in [
        ("--driver=local", long.as_str(), "up to 63 letters"),
        ("--driver=local --hostname-override=no_host", "m", "is no host name"),
        ("--driver=local --local-cpus=-1", "m", "--local-cpus=-1 must not be negative"),
        ("--driver=local --local-nosuch=1", "m", "does not know --local-nosuch"),
        ("--driver=local --custom-install-script=/nonexistent", "m", "cannot read the install script"),
    ] {
        let failure = cli.create(&args(line, name)).unwrap_err();
        assert_eq!((failure.code, failure.message.contains(said)), (3, true), "{failure}");
        assert!(cli.ls().unwrap().is_empty() && !data_dir.exists(), "{line} {name}");
    }
}

#[test]
fn forced_removal_names_what_may_be_left_machine_drivers_check_27() {
    let dir = tempfile::tempdir().unwrap();
    let (store, cloud) = (DiskStore::new(dir.path()), Cloud::default());
    let other = cloud.clone();
    let find = move |_: &str| Some(Box::new(other.clone()) as Box<dyn Driver>);
    let cli = Cli { store: &store, driver: &find, known: None, env: &|_| None, sleep: &|_| () };
    cloud.script(&["running"]);
    cli.create(&CreateArgs { driver: "cloud".into(), name: "m".into(), ..CreateArgs::default() }).unwrap();
    cloud.script(&["fail"]);
    let left = "machine m i-1 may still exist: quota of patience exceeded".to_owned();
    assert_eq!(cli.rm("m", true).unwrap(), Removal::Forgotten(left));
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn two_processes_do_not_work_on_one_machine() {
    let dir = tempfile::tempdir().unwrap();
    let (store, cloud) = (DiskStore::new(dir.path()), Cloud::default());
    let find = move |_: &str| Some(Box::new(cloud.clone()) as Box<dyn Driver>);
    let cli = Cli { store: &store, driver: &find, known: None, env: &|_| None, sleep: &|_| () };
    let other = Mutex::new(Some(store.lock("m").unwrap()));
    let failure = cli.rm("m", false).unwrap_err();
    assert!(failure.message.contains("another process"), "{failure}");
    // The other one ends while we wait.
    let sleep = |_: Duration| drop(other.lock().unwrap().take());
    Cli { sleep: &sleep, ..cli }.rm("m", false).unwrap();
}

/// Whoever waits must not get the lock of a file that is no longer there beside somebody who has the new one.
#[test]
fn a_lock_leaves_no_file_and_keeps_all_but_one_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = DiskStore::new(dir.path());
    let (inside, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while done.load(Ordering::SeqCst) < 2000 {
                    let Ok(lock) = store.lock("m") else { continue };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    done.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(lock);
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(dir.path().join("locks")).unwrap().count(), 0);
}

#[test]
fn state_of_the_original_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let machine = dir.path().join("machines/m");
    std::fs::create_dir_all(&machine).unwrap();
    let config = r#"{"ConfigVersion":3,"Driver":{"IPAddress":"1.2.3.4","InstanceId":"i-9","SSHUser":"ubuntu","Retries":5},
        "DriverName":"amazonec2","HostOptions":{"Driver":"","Memory":0,"Disk":0,"CustomInstallScript":"/x","EngineOptions":null,
        "HostnameOverride":"h","MachineOS":"linux","SwarmOptions":null,"AuthOptions":null},"Name":"m"}"#;
    std::fs::write(machine.join("config.json"), config).unwrap();
    let host: Host = DiskStore::new(dir.path()).load("m").unwrap().unwrap();
    assert_eq!(
        (host.driver_text("InstanceId"), host.config.host_options.hostname_override.as_str()),
        ("i-9", "h")
    );
    assert_eq!(host.config.driver["Retries"], 5, "fields that we do not know are kept");
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

/// A provider whose next answers are written down beforehand.
#[derive(Clone, Default)]
struct Cloud(Arc<Mutex<CloudState>>);

#[derive(Default)]
struct CloudState {
    /// What a look before creation says.
    objection: Option<&'static str>,
    answers: Vec<&'static str>,
    instances: BTreeMap<String, u32>,
}

impl Cloud {
    fn script(&self, answers: &[&'static str]) {
        self.0.lock().unwrap().answers = answers.iter().rev().copied().collect();
    }

    fn made(&self) -> usize {
        self.0.lock().unwrap().instances.len()
    }

    fn answer(&self) -> &'static str {
        self.0.lock().unwrap().answers.pop().unwrap()
    }
}

fn progress(state: State) -> Progress {
    Progress {
        id: "i-1".into(),
        addresses: Addresses::default(),
        state,
        next_poll: Some(Duration::from_secs(7)),
    }
}

impl Driver for Cloud {
    fn name(&self) -> &str {
        "cloud"
    }

    fn flags(&self) -> Vec<Flag> {
        Vec::new()
    }

    fn validate(&self, _: &MachineRequest) -> Result<(), DriverError> {
        let objection = self.0.lock().unwrap().objection;
        objection.map_or(Ok(()), |why| Err(DriverError::Invalid(why.to_owned())))
    }

    fn ensure(&self, request: &MachineRequest, state: &mut DriverState) -> Result<Progress, DriverError> {
        let token = format!("token-{}", request.name);
        state.insert("ClientToken".to_owned(), token.clone().into());
        let answer = self.answer();
        let mut cloud = self.0.lock().unwrap();
        let number = cloud.instances.len() as u32 + 1;
        let id = *cloud.instances.entry(token).or_insert(number);
        if answer.contains("lose") {
            return Err(DriverError::Failed { message: "connection reset".into(), retry_after: None });
        }
        state.insert("InstanceId".to_owned(), format!("i-{id}").into());
        Ok(progress(if answer == "running" { State::Running } else { State::Starting }))
    }

    fn observe(&self, _: &str, _: &DriverState) -> Result<Progress, DriverError> {
        Ok(progress(State::Running))
    }

    fn delete(&self, name: &str, _: &mut DriverState) -> Result<Progress, DriverError> {
        match self.answer() {
            "gone" => {
                self.0.lock().unwrap().instances.remove(&format!("token-{name}"));
                Err(DriverError::Failed { message: "Instance Not Found".into(), retry_after: None })
            }
            "stopping" => Ok(progress(State::Stopping)),
            _ => Err(DriverError::Failed { message: "quota of patience exceeded".into(), retry_after: None }),
        }
    }

    fn power(&self, _: &str, _: &DriverState, _: PowerOp) -> Result<Progress, DriverError> {
        Ok(progress(State::Running))
    }
}
