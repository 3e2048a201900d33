//! A client that fails or dies at call N, for crash tests of controllers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use tower::{BoxError, Service};

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call never reaches the server.
    Lost,
    /// The server executes it, but the response is lost.
    AnswerLost,
    /// Like `AnswerLost`, and every later call is lost: the caller is effectively dead.
    Crash,
    /// Like `Lost`, and every later call is lost.
    CrashBefore,
}

/// Chooses, for all clients that share it, the writing calls with a fault. Reads and watches are not affected.
#[derive(Debug)]
pub struct Plan {
    fault: Fault,
    at: u64,
    /// Calls between faults; 0 means a single fault.
    gap: u64,
    writes: AtomicU64,
}

impl Plan {
    /// A fault at the `at`-th writing call, counted from 1; 0 means never.
    pub fn new(fault: Fault, at: u64) -> Arc<Self> {
        Self::every(fault, at, 0)
    }

    /// A fault at the `at`-th writing call and at every `gap`-th after it.
    pub fn every(fault: Fault, at: u64, gap: u64) -> Arc<Self> {
        Arc::new(Self { fault, at, gap, writes: AtomicU64::new(0) })
    }

    /// The number of writing calls so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// The number of faults so far.
    pub fn faults(&self) -> u64 {
        let after = self.writes().checked_sub(self.at).filter(|_| self.at != 0);
        after.map_or(0, |after| 1 + after.checked_div(self.gap).unwrap_or(0))
    }

    /// Whether the fault has happened.
    pub fn struck(&self) -> bool {
        self.at != 0 && self.writes() >= self.at
    }

    fn judge(&self, method: &http::Method) -> Verdict {
        if *method == http::Method::GET {
            let dead = self.struck() && matches!(self.fault, Fault::Crash | Fault::CrashBefore);
            return if dead { Verdict::Lose } else { Verdict::Pass };
        }
        let call = self.writes.fetch_add(1, Ordering::SeqCst) + 1;
        let Some(after) = call.checked_sub(self.at).filter(|_| self.at != 0) else { return Verdict::Pass };
        let hit = after == 0 || after.checked_rem(self.gap) == Some(0);
        match self.fault {
            Fault::Crash if after == 0 => Verdict::LoseAnswer,
            Fault::Crash | Fault::CrashBefore => Verdict::Lose,
            Fault::Lost if hit => Verdict::Lose,
            Fault::AnswerLost if hit => Verdict::LoseAnswer,
            Fault::Lost | Fault::AnswerLost => Verdict::Pass,
        }
    }
}

enum Verdict {
    Pass,
    Lose,
    LoseAnswer,
}

/// A service with injected faults.
#[derive(Clone)]
pub struct Faulty<S> {
    inner: S,
    plan: Arc<Plan>,
}

impl<S> Faulty<S> {
    pub fn new(inner: S, plan: Arc<Plan>) -> Self {
        Self { inner, plan }
    }
}

impl<S, B> Service<Request<Body>> for Faulty<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let verdict = self.plan.judge(request.method());
        if matches!(verdict, Verdict::Lose) {
            return Box::pin(async { Err("connection lost (injected)".into()) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into);
            if matches!(verdict, Verdict::LoseAnswer) {
                return Err("connection lost after the call (injected)".into());
            }
            answer
        })
    }
}
