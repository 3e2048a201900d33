//! A K3s-shaped Kubernetes distribution without pods.
