//! Values of a plan secret that are not what their key is for. Whoever holds the machine's credential can write any of
//! them, so each is judged alone and concerns its own machine only.
//!
//! A value that Drover writes too is repaired: the right one follows from the other keys. A value that only the agent
//! writes is named and left out of every decision. [`Reader`] reads keys and keeps what it could not use.

use std::collections::BTreeMap;
use std::io::Read;

use drover_plan::{Plan, PlanState, ProbeStatus, keys};
use k8s_openapi::ByteString;
use serde::de::{DeserializeOwned, IgnoredAny};

/// Upper bound on an unpacked output. Drover's agent saves at most 512 KiB per plan, and a Secret holds 1 MiB.
pub const UNPACKED_LIMIT: u64 = 2 << 20;
/// So many characters of a value are shown.
const SHOWN: usize = 32;

/// The data of a Secret.
pub type Data = BTreeMap<String, ByteString>;

/// What becomes of an unusable value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// The key gets this value.
    Value(Vec<u8>),
    /// The key is removed, which means its default.
    Remove,
    /// The planner writes the plan again, as soon as the rules of its tier allow it.
    Plan,
    /// Only the machine's agent knows the right value.
    Agent,
}

/// An unusable value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    pub key: &'static str,
    /// What the key is for.
    expected: &'static str,
    /// What it holds, shortened, and without what a plan or an output may keep secret.
    seen: String,
    pub repair: Repair,
}

impl Garbage {
    /// Whether Drover writes the right value at once.
    pub fn is_repaired(&self) -> bool {
        matches!(self.repair, Repair::Value(_) | Repair::Remove)
    }

    /// What is wrong, and what happens or is to be done about it.
    pub fn message(&self, secret: &str) -> String {
        let Self { key, expected, seen, repair } = self;
        let what = format!("key {key} of Secret {secret} {seen}, expected {expected}");
        match repair {
            Repair::Value(_) | Repair::Remove => format!("{what}: Drover writes the key again"),
            Repair::Plan => format!("{what}: Drover writes the plan again"),
            Repair::Agent => format!(
                "{what}: the agent of the machine writes it again with its next report; if it does not, restart \
                 rancher-system-agent on the machine or remove the key"
            ),
        }
    }
}

/// Reads the keys of a plan secret.
pub struct Reader<'a> {
    data: &'a Data,
    pub garbage: Vec<Garbage>,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a Data) -> Self {
        Self { data, garbage: Vec::new() }
    }

    /// The bytes of a key; an empty value is none.
    pub fn bytes(&self, key: &str) -> Option<&'a [u8]> {
        self.data.get(key).map(|value| value.0.as_slice()).filter(|value| !value.is_empty())
    }

    pub fn has_garbage(&self, key: &str) -> bool {
        self.garbage.iter().any(|garbage| garbage.key == key)
    }

    fn refuse(&mut self, key: &'static str, expected: &'static str, seen: String, repair: Repair) {
        self.garbage.push(Garbage { key, expected, seen, repair });
    }

    /// A plan.
    pub fn plan(&mut self, key: &'static str, repair: impl FnOnce() -> Repair) -> Option<Plan> {
        let bytes = self.bytes(key)?;
        match drover_plan::from_slice(bytes) {
            Ok(plan) => Some(plan),
            Err(error) => {
                let seen = format!("holds {} bytes that are no plan ({error})", bytes.len());
                self.refuse(key, "a machine plan as JSON", seen, repair());
                None
            }
        }
    }

    /// A count. Anything else is refused and reads as none.
    pub fn count(&mut self, key: &'static str, repair: impl FnOnce() -> Repair) -> Option<i64> {
        self.number(key, "a whole number from 0 on", |number| number >= 0, repair)
    }

    /// A limit, of which -1 means none.
    pub fn limit(&mut self, key: &'static str) -> Option<i64> {
        self.number(
            key,
            "-1 or a whole number from 1 on",
            |number| number == -1 || number > 0,
            || Repair::Remove,
        )
    }

    fn number(
        &mut self,
        key: &'static str,
        expected: &'static str,
        fits: impl Fn(i64) -> bool,
        repair: impl FnOnce() -> Repair,
    ) -> Option<i64> {
        let bytes = self.bytes(key)?;
        let number = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse::<i64>().ok());
        let number = number.filter(|number| fits(*number));
        if number.is_none() {
            self.refuse(key, expected, shown(bytes), repair());
        }
        number
    }

    /// The state of the plan.
    pub fn state(&mut self, repair: impl FnOnce() -> Repair) -> Option<PlanState> {
        let bytes = self.bytes(keys::PLAN_STATE)?;
        let state = PlanState::parse(bytes);
        if state.is_none() {
            let expected = "pending, in-progress, succeeded, failed or cancelled";
            self.refuse(keys::PLAN_STATE, expected, shown(bytes), repair());
        }
        state
    }

    /// What the machine says of its probes.
    pub fn probes(&mut self) -> Option<BTreeMap<String, ProbeStatus>> {
        let key = keys::PROBE_STATUSES;
        let bytes = self.bytes(key)?;
        match drover_plan::from_slice(bytes) {
            Ok(statuses) => Some(statuses),
            Err(error) => {
                let seen = format!("holds {} bytes that cannot be read ({error})", bytes.len());
                self.refuse(key, "the state of each probe as a JSON object", seen, Repair::Agent);
                None
            }
        }
    }

    /// A map that the agent packed.
    pub fn output<T: DeserializeOwned>(&mut self, key: &'static str) -> BTreeMap<String, T> {
        let Some(bytes) = self.bytes(key) else { return BTreeMap::new() };
        unpack(bytes).unwrap_or_else(|why| {
            let seen = format!("holds {} bytes that cannot be read ({why})", bytes.len());
            self.refuse(key, "a JSON object in gzip", seen, Repair::Agent);
            BTreeMap::new()
        })
    }

    /// Keys of the agent that no decision depends on: only told.
    pub fn look_at_the_rest(&mut self) {
        for key in [keys::SUCCESS_COUNT, keys::PLAN_REVISION, keys::PROBE_PERIOD_SECONDS] {
            self.count(key, || Repair::Agent);
        }
        for key in [keys::APPLIED_CHECKSUM, keys::FAILED_CHECKSUM] {
            let is_sum = |bytes: &[u8]| {
                bytes.len() == 64 && bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            };
            if let Some(bytes) = self.bytes(key).filter(|bytes| !is_sum(bytes)) {
                self.refuse(key, "a SHA-256 in 64 lower-case hex digits", shown(bytes), Repair::Agent);
            }
        }
        let key = keys::LAST_APPLY_TIME;
        let is_time =
            |bytes: &[u8]| std::str::from_utf8(bytes).ok().and_then(super::upkeep::parse_unix_date).is_some();
        if let Some(bytes) = self.bytes(key).filter(|bytes| !is_time(bytes)) {
            let expected = "a time like Thu Jan  1 15:04:05 UTC 2026";
            self.refuse(key, expected, shown(bytes), Repair::Agent);
        }
        for key in [keys::APPLIED_OUTPUT, keys::FAILED_OUTPUT] {
            self.output::<IgnoredAny>(key);
        }
    }
}

/// Unpacks a map: gzip around JSON. Bounded, because it comes from a machine.
pub fn unpack<T: DeserializeOwned>(packed: &[u8]) -> Result<BTreeMap<String, T>, String> {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(packed)
        .take(UNPACKED_LIMIT + 1)
        .read_to_end(&mut text)
        .map_err(|error| format!("not gzip: {error}"))?;
    if text.len() as u64 > UNPACKED_LIMIT {
        return Err(format!("unpacked it has more than {} MiB", UNPACKED_LIMIT >> 20));
    }
    drover_plan::from_slice(&text).map_err(|error| error.to_string())
}

/// The beginning of a short value, in one line.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let head: String = text.chars().take(SHOWN).collect();
    match text.chars().nth(SHOWN) {
        None => format!("holds {head:?}"),
        Some(_) => format!("holds {} bytes that begin with {head:?}", bytes.len()),
    }
}
