//! The embedded Kubernetes API server and its store.
