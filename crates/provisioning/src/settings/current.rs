//! The current settings: those with which the server was started, overridden by Setting objects.

use std::sync::Arc;

use drover_api::management::v3::Setting;
use drover_runtime::events::Note;
use drover_runtime::{Cache, Change, Error, Next, ObjectKey, Reconciler};
use kube::ResourceExt;

use super::{Refused, Settings};
use crate::context::Context;

/// The effective settings. Clones share them.
#[derive(Clone)]
pub struct CurrentSettings {
    started_with: Arc<Settings>,
    objects: Cache<Setting>,
}

impl CurrentSettings {
    pub fn new(started_with: Settings, objects: Cache<Setting>) -> Self {
        Self { started_with: Arc::new(started_with), objects }
    }

    /// The current settings. Callers read them each time, so that a change takes effect without a restart.
    pub fn now(&self) -> Settings {
        in_force(&self.started_with, self.objects.list().iter().map(AsRef::as_ref))
    }

    /// Calls `listener` for every existing Setting and for every change.
    pub fn on_change(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.objects.subscribe(move |change| {
            if is_change(change) {
                listener();
            }
        });
    }
}

/// Whether the effective value of a Setting changed.
pub fn is_change(change: &Change<'_, Setting>) -> bool {
    let value = |setting: Option<&Arc<Setting>>| setting.map(|setting| setting.spec.effective().to_owned());
    value(change.old) != value(change.new)
}

/// The settings with which the server was started, overridden by Setting objects. Invalid values are ignored.
fn in_force<'a>(started_with: &Settings, objects: impl Iterator<Item = &'a Setting>) -> Settings {
    let mut settings = started_with.clone();
    for object in objects {
        let value = object.spec.effective();
        if !value.is_empty() {
            // An invalid value is reported by the controller.
            let _ = settings.set(&object.name_any(), value);
        }
    }
    settings
}

/// Reports Settings that have no effect.
pub struct Reports {
    context: Context,
}

impl Reports {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone() }
    }
}

impl Reconciler for Reports {
    const NAME: &'static str = "setting";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        if let Some(setting) = self.context.store.settings.get(&key) {
            self.context.events.publish(setting.as_ref(), &note(&setting));
        }
        Ok(Next::EVENT)
    }
}

fn note(setting: &Setting) -> Option<Note> {
    let value = setting.spec.effective();
    if value.is_empty() {
        return None;
    }
    let note = match Settings::default().set(&setting.name_any(), value).err()? {
        Refused::Unknown => Note::warning(
            "NotInEffect",
            "Stored, but nothing in Drover depends on a setting of this name yet",
        ),
        Refused::Senseless(why) => Note::warning("InvalidValue", format!("Ignored: {why}")),
    };
    Some(note.standing())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn setting(name: &str, value: &str, default: &str) -> Setting {
        serde_json::from_value(json!({
            "apiVersion": "management.cattle.io/v3", "kind": "Setting", "metadata": {"name": name},
            "value": value, "default": default,
        }))
        .unwrap()
    }

    #[test]
    fn what_a_setting_says_is_in_force_and_nonsense_is_not() {
        let started = Settings { server_url: "https://10.0.0.1:8443".into(), ..Settings::default() };
        let objects = [
            setting("server-url", "https://drover.example/", "https://10.0.0.1:8443"),
            setting("system-default-registry", "", "registry.example"),
            setting("agent-tls-mode", "perhaps", ""),
            setting("brand", "suse", ""),
            setting("delete-machine-on-failure-after", "5m", "0s"),
        ];
        let now = in_force(&started, objects.iter());
        assert_eq!(now.server_url, "https://drover.example");
        assert_eq!(now.system_default_registry, "registry.example");
        assert!(now.agent_tls_strict, "as it was");
        assert_eq!(now.delete_machine_on_failure_after, jiff::SignedDuration::from_mins(5));
        let reported: Vec<_> = objects.iter().map(|object| note(object).map(|note| note.reason)).collect();
        assert_eq!(reported, [None, None, Some("InvalidValue"), Some("NotInEffect"), None]);
        assert!(note(&objects[2]).unwrap().message.contains("\"perhaps\""));
        assert_eq!(note(&setting("brand", "", "")), None, "says nothing");
    }
}
