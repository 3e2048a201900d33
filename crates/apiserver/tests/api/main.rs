//! The server through its HTTP service: in process for most, over a socket with real kubectl at the end.

mod conventions;
mod harness;
mod kubectl;
mod watching;
