//! The ways in which a request can fail.

use std::{collections::BTreeMap, sync::Mutex};

/// A kind of request.
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
    /// The requests that the agent depends on.
    pub const ALL: [Self; 5] = [Self::Version, Self::List, Self::Watch, Self::Get, Self::Put];
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server returns an error, as a Kubernetes Status.
    Status(u16),
    /// The server processes it, but a gateway returns this status with HTML.
    Gateway(u16),
    /// The server stops with this request, until the test opens the port again.
    Refused,
    /// The connection breaks before the request is processed.
    Reset,
    /// It breaks after that, before the response.
    ResetAfter,
    /// It breaks in the middle of the response.
    ResetInside,
    /// There is no response, and the request is not processed.
    Hang,
    /// The request is processed, but there is no response.
    HangAfter,
    /// The response stops in the middle, and the connection stays open.
    HangInside,
    /// The response ends normally, in the middle.
    Truncated,
    /// 200 with a body that is not JSON.
    Garbage,
    /// 200 with an empty body.
    Empty,
    /// 200 with JSON of another kind.
    OtherKind,
    /// A redirect to another server.
    Redirect,
    /// A watch that ends immediately.
    WatchEnds,
    /// A watch with only this ERROR event.
    WatchError(u16),
    /// A watch with an endless line.
    EndlessLine,
}

impl Fault {
    /// The faults of any request.
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
    /// Additional faults of a watch.
    pub const WATCH: [Self; 5] = [
        Self::WatchEnds,
        Self::WatchError(410),
        Self::WatchError(500),
        Self::WatchError(429),
        Self::EndlessLine,
    ];

    /// All faults of a request.
    pub fn of(call: Call) -> Vec<Self> {
        let more: &[Self] = if call == Call::Watch { &Self::WATCH } else { &[] };
        [&Self::ANY, more].concat()
    }

    /// Whether it can be detected only by a timeout.
    pub fn hangs(self) -> bool {
        matches!(self, Self::Hang | Self::HangAfter | Self::HangInside)
    }
}

/// Which requests fail.
#[derive(Default)]
pub struct Faults(Mutex<State>);

#[derive(Default)]
struct State {
    due: BTreeMap<Call, (Fault, usize)>,
    struck: usize,
    /// The state of the random generator; 0 for none.
    chaos: u64,
}

impl Faults {
    /// The next `times` requests fail like this.
    pub fn fail(&self, call: Call, fault: Fault, times: usize) {
        let mut state = self.0.lock().unwrap();
        state.due.insert(call, (fault, times));
        state.struck = 0;
    }

    /// Removes all faults.
    pub fn heal(&self) {
        let mut state = self.0.lock().unwrap();
        state.due.clear();
        state.chaos = 0;
    }

    /// The number of failed requests.
    pub fn struck(&self) -> usize {
        self.0.lock().unwrap().struck
    }

    /// From now on about every third request fails, in random ways.
    pub fn chaos(&self, seed: u64) {
        self.0.lock().unwrap().chaos = seed.max(1);
    }

    pub(super) fn next(&self, call: Call) -> Option<Fault> {
        let mut state = self.0.lock().unwrap();
        if state.chaos != 0 {
            let dice =
                state.chaos.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.chaos = dice.max(1);
            // A port must be reopened by its caller, so this fault is not random.
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
