//! Reverse tunnel, wire-compatible with remotedialer.
