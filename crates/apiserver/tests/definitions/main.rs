//! Custom resources, tables and OpenAPI from the clients' view: over HTTP, with real CRDs and with kubectl.
#![recursion_limit = "256"] // the CRD is one large json!
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod capi;
mod harness;
mod http;
mod kubectl;
