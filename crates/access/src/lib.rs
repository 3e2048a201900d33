//! Tokens, users, authorisation, the cluster proxy and kubeconfigs.
