//! Structural schemas of Kubernetes custom resources.
//!
//! A CRD's `openAPIV3Schema` becomes a [`Schema`] once, when the CRD is written; then every write of an object goes
//! through [`Schema::prune`], [`Schema::default`] and [`Schema::validate`], which includes the CEL rules of
//! `x-kubernetes-validations`. Errors carry the types, field paths and texts of kube-apiserver.
//!
//! This crate is pure: no I/O, no clock, no async, and no knowledge of CRDs, storage or HTTP.
//!
//! Start reading at [`schema`] (the compiled whole), then [`structural`], [`validate`] and [`cel`].

pub mod cel;
pub mod default;
pub mod duplicates;
pub mod duration;
pub mod error;
pub mod path;
pub mod prune;
pub mod schema;
pub mod structural;
pub mod validate;

pub use error::{ErrorKind, FieldError, aggregate};
pub use path::Path;
pub use schema::Schema;
pub use structural::Structural;
