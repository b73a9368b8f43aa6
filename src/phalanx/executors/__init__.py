"""Executors: they start and end supervisors, on this machine, in a Ray cluster or in Kubernetes.

Reading order: `protocol` (what every executor promises), `routing` (the executor of each pool), `local`,
`ray`, `kubernetes`. `node_files` and `outbound` serve the executors of other machines. Nothing here
decides what runs; an executor imports the protocol and no other executor. See `docs/dev/executors.md`.
"""
