//! A machine's life, and the ways it goes wrong.

use drover_runtime::events::Note;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::decide::{Action, decide};
use super::scope::{JobView, Scope};
use super::state::Machine;
use super::waits::Waiting;
use super::{events, status};

/// An infra machine with its Job; actions are executed on it.
pub(super) struct World {
    pub(super) object: Value,
    pub(super) scope: Scope,
    pub(super) now: Timestamp,
    pub(super) gone: bool,
    pub(super) leftover: Option<String>,
    pub(super) started: Vec<bool>,
    replaced: bool,
    told: Vec<Note>,
}

impl World {
    pub(super) fn new() -> Self {
        let object = json!({
            "apiVersion": "rke-machine.cattle.io/v1", "kind": "LocalMachine",
            "metadata": {"namespace": "default", "name": "m1"},
            "spec": {},
        });
        let scope = Scope {
            owner: Some("m1".into()),
            capi_machine: Some("m1".into()),
            bootstrap_secret: Some("m1-machine-bootstrap".into()),
            ..Scope::default()
        };
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        Self {
            object,
            scope,
            now,
            gone: false,
            leftover: None,
            started: vec![],
            replaced: false,
            told: vec![],
        }
    }

    fn run(&mut self) -> &mut Self {
        for _ in 0..10 {
            if self.gone {
                break;
            }
            if self.pass().is_empty() {
                break;
            }
        }
        self
    }

    /// One pass; returns what it did.
    pub(super) fn pass(&mut self) -> Vec<Action> {
        self.scope.machine = Machine::read(&self.object);
        let decision = decide(&self.scope, self.now);
        if status::quiet_until(&self.scope, &decision, self.now).is_some() {
            return vec![];
        }
        self.told.extend(events::events(&self.scope, &decision));
        let done = decision.actions.iter().filter_map(|action| events::done(&self.scope, action, "m1-job"));
        self.told.extend(done);
        for action in &decision.actions {
            self.execute(action.clone());
        }
        if !matches!(decision.actions.as_slice(), [Action::Adopt { .. }]) {
            self.object["status"] = status::status(&self.scope, &decision, None, self.now);
        }
        decision.actions
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Record => {}
            Action::Adopt { machine } => {
                if let Some(machine) = machine {
                    self.object["metadata"]["labels"] = json!({"rke.cattle.io/capi-machine-name": machine});
                }
                self.object["metadata"]["finalizers"] =
                    json!(["wrangler.cattle.io/machine-provision-remove"]);
            }
            Action::StartJob { remove, .. } => {
                assert!(self.scope.job.is_none(), "a Job is never replaced");
                self.started.push(remove);
                self.scope.job = Some(JobView { remove, ..JobView::default() });
            }
            Action::DeleteJob | Action::CleanUp | Action::CleanUpAll => self.scope.job = None,
            Action::DeleteCapiMachine(_) => {
                self.replaced = true;
                self.delete();
            }
            Action::RemoveFinalizer(left) => {
                self.gone = true;
                self.leftover = left;
            }
        }
    }

    pub(super) fn delete(&mut self) {
        self.object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }

    fn finish(&mut self) -> &mut Self {
        self.scope.job.as_mut().unwrap().complete = true;
        self.run()
    }

    fn fail(&mut self, message: &str) -> &mut Self {
        self.scope.job.as_mut().unwrap().failed = Some(("Error".into(), message.into()));
        self.run()
    }

    fn condition(&self, type_: &str) -> (String, String) {
        let list = self.object["status"]["conditions"].as_array().unwrap();
        let found = list.iter().find(|c| c["type"] == type_);
        let text = |key: &str| found.and_then(|c| c[key].as_str()).unwrap_or_default().to_owned();
        (text("status"), text("message"))
    }
}

#[test]
fn a_server_is_created_and_becomes_ready() {
    let mut world = World::new();
    world.scope.blocked = Some(Waiting::BootstrapData { machine: "m1".into() });
    world.run();
    assert_eq!(world.condition("Ready"), ("False".into(), "waiting for bootstrap data".into()));
    assert!(world.started.is_empty());
    world.scope.blocked = None;
    world.run();
    assert_eq!(world.condition("CreateJob").0, "Unknown");
    let text =
        "creating server [default/m1] of kind (LocalMachine) for machine m1 in infrastructure provider";
    assert_eq!(world.condition("Ready"), ("False".into(), text.into()));
    world.finish();
    assert_eq!((world.condition("CreateJob").0, world.condition("Ready").0), ("True".into(), "True".into()));
    assert_eq!(world.object["status"]["initialization"]["provisioned"], false);
    world.object["spec"]["providerID"] = json!("local://m1");
    world.run();
    assert_eq!(world.object["status"]["initialization"]["provisioned"], true);
    assert_eq!(world.scope.job, None, "cleaned up");
    assert_eq!(world.run().started, [false], "and never made again");
}

#[test]
fn machine_drivers_check_28_a_senseless_hostname_limit_is_told_once() {
    for (limit, warned) in [("9", 1), ("x", 1), ("20", 0), ("", 0)] {
        let mut world = World::new();
        world.object["metadata"]["annotations"] = json!({"rke.cattle.io/hostname-length-limit": limit});
        world.run().finish();
        let told = world.told.iter().filter(|note| note.type_ == "Warning").collect::<Vec<_>>();
        assert_eq!(told.len(), warned, "{limit}: {told:?}");
        assert!(told.iter().all(|note| note.message.contains(&format!("{limit:?} is ignored"))), "{told:?}");
    }
}

#[test]
fn provisioning_check_25_a_running_or_finished_job_is_left_alone() {
    let mut world = World::new();
    world.run();
    world.scope.settings.machine_provision_image = "another/image".into();
    world.run();
    assert_eq!(world.started, [false]);
    world.finish().run();
    assert_eq!(world.started, [false]);
}

#[test]
fn provisioning_check_26_a_failed_create_is_shown_then_replaced() {
    let mut world = World::new();
    world.run().fail("quota exceeded");
    assert_eq!(world.object["status"]["failureReason"], "CreateError");
    let message = world.object["status"]["failureMessage"].as_str().unwrap();
    assert!(
        message.starts_with("failed creating server [default/m1]")
            && message.ends_with("Error: quota exceeded")
    );
    assert!(!world.replaced, "not at once, so that a broken driver does not spin");
    world.now += SignedDuration::from_secs(11);
    world.run();
    assert!(world.replaced);
    assert_eq!(world.started, [false, true], "what was made is removed");
    world.finish();
    assert!(world.gone && world.leftover.is_none());
}

#[test]
fn machine_drivers_check_9_a_failed_check_before_creation_shows_the_providers_message() {
    let mut world = World::new();
    world.run().fail("InvalidSubnetID.NotFound: the subnet ID 'subnet-1' does not exist");
    assert_eq!(world.object["status"]["failureReason"], "CreateError");
    for type_ in ["CreateJob", "Ready"] {
        let (status, message) = world.condition(type_);
        assert!(status == "False" && message.contains("'subnet-1' does not exist"), "{type_}: {message}");
    }
    // Deletion waits for nothing but a removal that finds nothing.
    world.delete();
    world.run().finish();
    assert!(world.gone && world.leftover.is_none());
}

#[test]
fn provisioning_check_27_deletion_cancels_a_create() {
    let mut world = World::new();
    world.run().delete();
    world.run();
    assert_eq!(world.started, [false, true]);
    world.finish();
    assert!(world.gone && world.leftover.is_none());
}

#[test]
fn provisioning_check_28_a_lost_job_is_resumed_or_cleaned() {
    let mut world = World::new();
    world.run();
    world.scope.job = None;
    world.run();
    assert_eq!(world.started, [false, false]);
    assert_eq!(world.object["status"]["attempt"], 1, "the same attempt goes on");
    world.scope.job = None;
    world.delete();
    world.run();
    assert_eq!(world.started, [false, false, true], "without the Job the server is still removed");
}

#[test]
fn provisioning_check_29_a_failing_removal_stays_until_forced() {
    let mut world = World::new();
    world.run().finish().delete();
    world.run().fail("cloud is down");
    assert_eq!(world.object["status"]["failureReason"], "DeleteError");
    assert!(!world.gone);
    world.now += SignedDuration::from_mins(6);
    world.run();
    assert_eq!(world.started, [false, true, true], "tried again");
    world.object["metadata"]["annotations"] = json!({"provisioning.cattle.io/force-machine-remove": "true"});
    world.fail("cloud is down");
    assert!(world.gone);
    assert!(world.leftover.as_deref().unwrap_or_default().contains("[default/m1]"));
}

#[test]
fn provisioning_check_30_removal_needs_no_capi_machine() {
    let mut world = World::new();
    world.run().finish().delete();
    world.scope.capi_machine = None;
    world.scope.blocked = Some(Waiting::Machine);
    world.run();
    assert_eq!(world.started, [false, true]);
    world.finish();
    assert!(world.gone);
}

#[test]
fn nothing_made_nothing_removed() {
    let mut world = World::new();
    world.scope.blocked = Some(Waiting::Machine);
    world.run().delete();
    world.run();
    assert!(world.gone && world.started.is_empty() && world.leftover.is_none());
}

#[test]
fn the_status_is_stable() {
    let mut world = World::new();
    world.run().finish();
    let before = world.object.clone();
    world.now += SignedDuration::from_hours(5);
    world.run();
    assert_eq!(world.object, before);
}

#[test]
fn a_machine_tells_of_its_jobs_and_each_thing_once() {
    let reasons = |world: &mut World| {
        world.run();
        let again = world.told.len();
        world.run();
        assert_eq!(world.told.len(), again, "told once: {:?}", world.told);
        std::mem::take(&mut world.told).iter().map(|note| note.reason).collect::<Vec<_>>()
    };
    let mut world = World::new();
    world.scope.blocked = Some(Waiting::BootstrapData { machine: "m1".into() });
    assert_eq!(reasons(&mut world), ["Waiting"]);
    world.scope.blocked = None;
    assert_eq!(reasons(&mut world), [""; 0], "the status shows the first attempt");
    world.finish();
    assert_eq!(reasons(&mut world), ["CreateJobSucceeded"]);
    world.delete();
    world.run();
    assert_eq!(world.told.last().unwrap().reason, "DeleteJobStarted", "{:?}", world.told);
    world.told.clear();
    world.finish();
    world.run();
    let told: Vec<_> = world.told.iter().map(|note| note.reason).collect();
    assert_eq!(told, ["DeleteJobSucceeded", "Deleted"]);

    let mut world = World::new();
    world.run();
    world.told.clear();
    world.fail("no such image");
    world.run();
    assert_eq!((world.told[0].type_, world.told[0].reason), ("Warning", "CreateError"));
    assert!(world.told[0].message.contains("no such image"), "{:?}", world.told);
}

#[test]
fn a_new_machine_writes_a_wait_only_if_it_lasts() {
    let mut world = World::new();
    world.object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    world.scope.blocked = Some(Waiting::BootstrapData { machine: "m1".into() });
    world.run();
    assert_eq!(world.object.get("status"), None);
    world.now += SignedDuration::from_secs(10);
    world.run();
    let waits = &world.object["status"]["waits"];
    assert_eq!(
        (&waits[0]["reason"], &waits[0]["object"]["kind"]),
        (&json!("WaitingForBootstrapData"), &json!("Machine"))
    );
    assert_eq!(world.condition("Ready").1, waits[0]["message"]);
    world.scope.blocked = None;
    world.run();
    assert_eq!(world.object["status"].get("waits"), None);
}

#[test]
fn a_failed_write_is_shown() {
    let mut world = World::new();
    world.run();
    let decision = decide(&world.scope, world.now);
    let status = status::status(&world.scope, &decision, Some("create Job default/m1: lost"), world.now);
    assert_eq!(status["waits"][0]["reason"], "WriteFailed");
    assert_eq!(status["waits"][0]["message"], "create Job default/m1: lost");
    assert_eq!(status["attempt"], 1);
}

#[test]
fn what_was_removed_is_not_removed_again_when_the_clean_up_was_interrupted() {
    let mut world = World::new();
    world.run().finish().delete();
    world.run();
    world.scope.job = None;
    world.object["status"]["conditions"].as_array_mut().unwrap().iter_mut().for_each(|condition| {
        if condition["type"] == "DeleteJob" {
            condition["status"] = json!("True");
        }
    });
    world.run();
    assert!(world.gone && world.leftover.is_none());
    assert_eq!(world.started, [false, true]);
}
