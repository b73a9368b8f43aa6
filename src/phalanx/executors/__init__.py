"""Executors: they start and end supervisors, on this machine or in a Ray cluster.

Reading order: `protocol` (what every executor promises), `routing` (the executor of each pool), `local`,
`ray`. Nothing here decides what runs; an executor imports the protocol and no other executor. See
`docs/dev/executors.md`.
"""
