"""Supervisors as bare pods of a Kubernetes cluster: a pool is a cluster, a node rank one pod.

Reading order: `credentials` and `client` (HTTP), `reflector` (the mirror of what the API server holds),
`quantities` and `inventory` (nodes), `manifests` (what is created), `deaths` (what proves an end),
`executor` (the protocol). `pod` runs inside a pod, as the parent of its supervisor. Decisions are pure
functions over plain objects; only `client` and `reflector` do I/O. See `docs/dev/kubernetes.md`.
"""
