//! The server with authentication, RBAC and controllers, as clients see it. Check numbers are those of the fact sheet on the
//! Kubernetes API.

mod gc;
mod harness;
mod kubectl;
mod namespaces;
mod rbac;
mod tls;
mod tokens;
