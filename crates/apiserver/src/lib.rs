//! The embedded Kubernetes API server and its store.
//!
//! It serves discovery, CRUD, lists, watches and patches of built-in and custom resources as an in-process `tower`
//! service; the caller provides listeners and TLS. It does not depend on the rest of Drover: it has no clusters,
//! machines or plans.
//!
//! Start reading at [`storage`] (a single revision; only committed state is visible), then [`resources`] (the served
//! resources), [`strategy`] (behaviour of a kind on writes), [`objects`] (all reads and writes go through it) and
//! `http` (requests and responses). Extension points: [`admission`], [`identity`] (authentication and authorization),
//! [`patch`] (strategic merge, server-side apply) and `server::Plugins`.

pub mod admission;
pub mod auth;
pub mod builtin;
pub mod clock;
pub mod controllers;
pub mod crd;
pub mod embedded;
pub mod http;
pub mod identity;
mod json;
pub mod limits;
mod metrics;
pub mod object;
pub mod objects;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod resources;
mod restart;
pub mod selector;
pub mod server;
pub mod status;
pub mod storage;
pub mod strategy;
pub mod table;
pub mod validation;

pub use identity::{PeerCertificates, UserInfo};
pub use server::{ApiServer, Options, Plugins};
