//! What can go wrong with a call, for a server that is perfect otherwise.

use std::{collections::BTreeMap, sync::Mutex};

/// What an agent asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Version,
    List,
    Watch,
    Get,
    Put,
    Asset,
}

impl Call {
    /// Those that the agent lives on.
    pub const ALL: [Self; 5] = [Self::Version, Self::List, Self::Watch, Self::Get, Self::Put];
}

/// How it goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server says no, with a Status as Kubernetes has it.
    Status(u16),
    /// The server does it, and a gateway in between answers this, in HTML.
    Gateway(u16),
    /// The server goes with the call, and nobody listens until the test opens the port again.
    Refused,
    /// The connection breaks before the call takes effect.
    Reset,
    /// It breaks after that, before the answer.
    ResetAfter,
    /// It breaks in the middle of the answer.
    ResetInside,
    /// No answer ever comes, and nothing is done.
    Hang,
    /// It is done, but no answer ever comes.
    HangAfter,
    /// The answer stops in the middle, and the connection stays.
    HangInside,
    /// The answer ends in good order, in the middle.
    Truncated,
    /// 200 with something that is not JSON.
    Garbage,
    /// 200 with nothing.
    Empty,
    /// 200 with JSON of another kind.
    OtherKind,
    /// The server, or who took its place, sends the caller elsewhere.
    Redirect,
    /// A watch that ends as soon as it began.
    WatchEnds,
    /// A watch that says only this ERROR.
    WatchError(u16),
    /// A watch whose line has no end.
    EndlessLine,
}

impl Fault {
    /// What can happen to any call.
    pub const ANY: [Self; 27] = [
        Self::Status(400),
        Self::Status(401),
        Self::Status(403),
        Self::Status(404),
        Self::Status(409),
        Self::Status(410),
        Self::Status(413),
        Self::Status(422),
        Self::Status(429),
        Self::Status(500),
        Self::Status(502),
        Self::Status(503),
        Self::Status(504),
        Self::Gateway(502),
        Self::Gateway(504),
        Self::Refused,
        Self::Reset,
        Self::ResetAfter,
        Self::ResetInside,
        Self::Hang,
        Self::HangAfter,
        Self::HangInside,
        Self::Truncated,
        Self::Garbage,
        Self::Empty,
        Self::OtherKind,
        Self::Redirect,
    ];
    /// What can happen to a watch beside that.
    pub const WATCH: [Self; 5] = [
        Self::WatchEnds,
        Self::WatchError(410),
        Self::WatchError(500),
        Self::WatchError(429),
        Self::EndlessLine,
    ];

    /// Everything that can happen to a call.
    pub fn of(call: Call) -> Vec<Self> {
        let more: &[Self] = if call == Call::Watch { &Self::WATCH } else { &[] };
        [&Self::ANY, more].concat()
    }

    /// Only time tells.
    pub fn hangs(self) -> bool {
        matches!(self, Self::Hang | Self::HangAfter | Self::HangInside)
    }
}

/// Which calls go wrong.
#[derive(Default)]
pub struct Faults(Mutex<State>);

#[derive(Default)]
struct State {
    due: BTreeMap<Call, (Fault, usize)>,
    struck: usize,
    /// State of the dice; 0 for none.
    chaos: u64,
}

impl Faults {
    /// The next `times` calls go wrong like this.
    pub fn fail(&self, call: Call, fault: Fault, times: usize) {
        let mut state = self.0.lock().unwrap();
        state.due.insert(call, (fault, times));
        state.struck = 0;
    }

    /// Everything works again.
    pub fn heal(&self) {
        let mut state = self.0.lock().unwrap();
        state.due.clear();
        state.chaos = 0;
    }

    /// How many calls went wrong since the test asked for it.
    pub fn struck(&self) -> usize {
        self.0.lock().unwrap().struck
    }

    /// From now on every third call or so goes wrong, in one way or another.
    pub fn chaos(&self, seed: u64) {
        self.0.lock().unwrap().chaos = seed.max(1);
    }

    pub(super) fn next(&self, call: Call) -> Option<Fault> {
        let mut state = self.0.lock().unwrap();
        if state.chaos != 0 {
            let dice =
                state.chaos.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.chaos = dice.max(1);
            // Who shuts the port must open it again; that is not for dice.
            let faults: Vec<Fault> =
                Fault::of(call).into_iter().filter(|fault| *fault != Fault::Refused).collect();
            return faults.get((dice >> 33) as usize % (faults.len() * 3)).copied();
        }
        let (fault, times) = state.due.get_mut(&call)?;
        let fault = *fault;
        *times -= 1;
        if *times == 0 {
            state.due.remove(&call);
        }
        state.struck += 1;
        Some(fault)
    }
}
