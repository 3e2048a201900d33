//! Container images, as the node agent and the server's registry read them.
//!
//! * [`Reference`] and [`Digest`]: the name of an image and the hash of its parts.
//! * [`manifest`]: manifests and indexes; start here.
//! * [`archive`]: files written by `docker save` or as an OCI image layout.
//! * [`Compression`]: the formats of archives and layers.
//!
//! Everything here is a pure function of bytes. It must not know a network, a file system or an async runtime, because
//! the agent reads through its `Host` and the registry reads ranges of files.

pub mod archive;
mod compression;
mod digest;
pub mod manifest;
mod reference;

pub use compression::{Compression, read_layer};
pub use digest::Digest;
pub use reference::{DOCKER_HUB, Reference, is_docker_hub, is_repository, is_tag};
