//! Drover's thin layer on kube: shared caches, work queues, apply, conditions, wait reasons.
