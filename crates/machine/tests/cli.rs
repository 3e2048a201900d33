//! The commands of `drover machine`, with a driver that fails on demand.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drover_machine::{
    cli::{Cli, CreateArgs, Failure, Removal},
    driver::{Addresses, Driver, DriverError, DriverState, MachineRequest, PowerOp, Progress, State},
    flags::Flag,
    host::Host,
    store::{DiskStore, Store},
};

#[test]
fn arguments_of_create_are_parsed() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let parsed = CreateArgs::parse(&words("-d local --custom-install-script /s --x-y z m1")).unwrap();
    assert_eq!((parsed.driver.as_str(), parsed.name.as_str()), ("local", "m1"));
    assert_eq!((parsed.custom_install_script.as_str(), parsed.driver_args), ("/s", words("--x-y z")));
    assert!(CreateArgs::parse(&words("--driver=local")).unwrap_err().message.contains("name"));
}

/// The state is saved before and after every step, so that nothing that was created is lost.
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
    cloud.script(&["create, then lose the response"]);
    assert_eq!(create().unwrap_err(), Failure { code: 1, message: "connection reset".into() });
    assert_eq!(store.load("m").unwrap().unwrap().driver_text("ClientToken"), "token-m");
    cloud.script(&["starting", "starting", "running"]);
    let host = create().unwrap();
    assert_eq!(host.driver_text("InstanceId"), "i-1");
    assert_eq!(cloud.count(), 1, "the instance was adopted");
    assert_eq!(*slept.lock().unwrap(), [Duration::from_secs(7); 2]);
    // A failed removal keeps the record. A repeated removal finds nothing.
    cloud.script(&["fail"]);
    assert_eq!(cli.rm("m", false).unwrap_err().message, "quota exceeded");
    assert!(store.load("m").unwrap().is_some());
    cloud.script(&["stopping", "gone"]);
    cli.rm("m", false).unwrap();
    cli.rm("m", false).unwrap();
    assert_eq!((cloud.count(), store.list().unwrap().len()), (0, 0));
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
    assert_eq!((cloud.count(), store.list().unwrap().len()), (0, 0));
    // Removal must not call the provider: a call without a scripted answer would panic.
    assert_eq!(cli.rm("m", false).unwrap(), Removal::Absent);
}

#[test]
fn forced_removal_names_what_may_still_exist_machine_drivers_check_27() {
    let dir = tempfile::tempdir().unwrap();
    let (store, cloud) = (DiskStore::new(dir.path()), Cloud::default());
    let other = cloud.clone();
    let find = move |_: &str| Some(Box::new(other.clone()) as Box<dyn Driver>);
    let cli = Cli { store: &store, driver: &find, known: None, env: &|_| None, sleep: &|_| () };
    cloud.script(&["running"]);
    cli.create(&CreateArgs { driver: "cloud".into(), name: "m".into(), ..CreateArgs::default() }).unwrap();
    cloud.script(&["fail"]);
    let left = "machine m i-1 may still exist: quota exceeded".to_owned();
    assert_eq!(cli.rm("m", true).unwrap(), Removal::Forgotten(left));
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn two_processes_cannot_change_one_machine_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, cloud) = (DiskStore::new(dir.path()), Cloud::default());
    let find = move |_: &str| Some(Box::new(cloud.clone()) as Box<dyn Driver>);
    let cli = Cli { store: &store, driver: &find, known: None, env: &|_| None, sleep: &|_| () };
    let other = Mutex::new(Some(store.lock("m").unwrap()));
    let failure = cli.rm("m", false).unwrap_err();
    assert!(failure.message.contains("another process"), "{failure}");
    // The other process releases the lock while this one waits.
    let sleep = |_: Duration| drop(other.lock().unwrap().take());
    Cli { sleep: &sleep, ..cli }.rm("m", false).unwrap();
}

/// A waiting process must not acquire a lock on the deleted file while another one holds the lock on the new file.
#[test]
fn a_lock_is_exclusive_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = DiskStore::new(dir.path());
    let (inside, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while done.load(Ordering::SeqCst) < 2000 {
                    let Ok(lock) = store.lock("m") else { continue };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two owners at once");
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
fn state_of_rancher_machine_is_read() {
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
    assert_eq!(host.config.driver["Retries"], 5, "unknown fields are kept");
}

/// A provider with scripted answers.
#[derive(Clone, Default)]
struct Cloud(Arc<Mutex<CloudState>>);

#[derive(Default)]
struct CloudState {
    /// Error of the check before creation.
    objection: Option<&'static str>,
    answers: Vec<&'static str>,
    instances: BTreeMap<String, u32>,
}

impl Cloud {
    fn script(&self, answers: &[&'static str]) {
        self.0.lock().unwrap().answers = answers.iter().rev().copied().collect();
    }

    fn count(&self) -> usize {
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
            _ => Err(DriverError::Failed { message: "quota exceeded".into(), retry_after: None }),
        }
    }

    fn power(&self, _: &str, _: &DriverState, _: PowerOp) -> Result<Progress, DriverError> {
        Ok(progress(State::Running))
    }
}
