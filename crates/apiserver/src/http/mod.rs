//! HTTP: translates requests to calls of [`Objects`](crate::objects::Objects), and results to responses.
//!
//! `service.rs` has the filters around every request, `handlers.rs` the verbs.

mod body;
mod compress;
mod decode;
mod discovery;
mod fairness;
mod handlers;
mod heavy;
mod incoming;
mod info;
mod labels;
mod memory;
mod negotiate;
mod patching;
mod paths;
pub mod pattern;
mod query;
mod respond;
mod scale;
mod service;
mod stream;

pub use body::ApiBody;
pub use discovery::{Discovery, Document};
pub use service::ApiService;
