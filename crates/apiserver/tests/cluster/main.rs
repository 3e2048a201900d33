//! A server with authentication, RBAC and controllers, from the clients' view. Check numbers are those of
//! `kubernetes-api` in docs/checks.md.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bodies;
mod gc;
mod harness;
mod kubectl;
mod namespaces;
mod rbac;
mod tls;
mod tokens;
