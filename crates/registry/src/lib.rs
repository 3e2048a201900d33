//! A registry over a folder of image archives, as `docker save` and the OCI image layout have them.
//!
//! * [`Registry`]: answers requests below `/v2/`. Start reading there.
//! * [`catalog`]: which images lie in the folder; every blob is a range of some file.
//! * [`archive`]: reads one archive.
//! * [`range`]: the `Range` header.
//!
//! It is read-only, keeps nothing in memory but an index, and streams blobs from the archives themselves. It knows
//! nothing of clusters or plans, nor of who may ask: whoever serves it decides that.

pub mod archive;
pub mod catalog;
mod name;
pub mod range;
mod registry;
mod unpacked;

pub use name::Name;
pub use registry::{Body, Registry};
