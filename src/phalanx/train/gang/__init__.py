"""One rank among others: its identity, how it reaches the others, and what it reports.

Read `context` first (the launcher's environment, the only module that reads it), then `groups` (process
groups, the control channel), `preflight` and `gathering` (before the first collective), `agreement` and
`stopping` (requests to stop or save), `report`, `failure` and `stacks` (files for the supervisor) and
`randomness` (seeds and generator states). Nothing here knows models, data or checkpoints.
"""
