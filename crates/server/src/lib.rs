//! Puts the management plane together: HTTP, TLS, start and stop.
