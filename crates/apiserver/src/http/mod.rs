//! HTTP: from a request to [`Objects`](crate::objects::Objects) and back.

mod body;
mod discovery;
mod service;

pub use body::ApiBody;
pub use discovery::{Discovery, Document};
pub use service::ApiService;
