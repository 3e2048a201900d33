//! A registry that serves a folder of image archives (`docker save` or OCI image layouts) over the OCI distribution
//! API.
//!
//! * [`Registry`]: handles requests below `/v2/`. Start reading there.
//! * [`catalog`]: the images in the folder; every blob is a range of some file.
//! * [`archive`]: reads one archive.
//! * [`range`]: the `Range` header.
//!
//! It is read-only, keeps only an index in memory, and streams blobs from the archives. It must not know clusters or
//! plans, and does not authenticate: that is up to its caller.

pub mod archive;
pub mod catalog;
pub mod range;
mod registry;
mod unpacked;

pub use registry::{Body, Registry};
