//! The embedded Kubernetes API server and its store.
//!
//! It serves discovery, CRUD, lists, watches and patches of built-in and custom resources over an in-process
//! `tower` service; who listens on a socket, and with which TLS, is the caller's business. It knows nothing of
//! Drover: no cluster, machine or plan appears here.
//!
//! Start reading at [`storage`] (one revision, committed state only), then [`registry`] (what is served),
//! [`strategy`] (what a kind does on a write), [`objects`] (the only way to read and write), and `http`
//! (requests to objects and back). Seams for others: [`admission`], [`identity`] (authentication and
//! authorization), [`patch`] (strategic merge, server-side apply) and `server::Plugins`.

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
mod lasting;
pub mod limits;
mod metrics;
pub mod object;
pub mod objects;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod registry;
pub mod selector;
pub mod server;
pub mod status;
pub mod storage;
pub mod strategy;
pub mod table;
pub mod validation;

pub use identity::{PeerCertificates, UserInfo};
pub use server::{ApiServer, Options, Plugins};
