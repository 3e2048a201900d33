//! Structural schemas of Kubernetes custom resources.
//!
//! When a CRD is written, its `openAPIV3Schema` is compiled into a [`Schema`]. Every write of an object then goes
//! through [`Schema::prune`], [`Schema::default`] and [`Schema::validate`], which includes the CEL rules of
//! `x-kubernetes-validations`. Errors have the types, field paths and texts of kube-apiserver.
//!
//! This crate is pure: no I/O, no clock, no async. It does not depend on CRDs, storage or HTTP.
//!
//! Start reading at [`schema`], then [`structural`], [`validate`] and [`cel`].

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
