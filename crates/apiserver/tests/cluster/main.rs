//! The server with authentication, RBAC and controllers, as clients see it. Check numbers are those of `kubernetes-api` in
//! docs/checks.md.

// A test that cannot go on may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bodies;
mod gc;
mod harness;
mod kubectl;
mod namespaces;
mod rbac;
mod tls;
mod tokens;
