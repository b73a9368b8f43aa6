"""The per-node supervisor: starts a job's ranks, watches them, and ships their logs, metrics and records.

Reading order: `__main__` and `boot` (the first milliseconds), `program` (orders and reports),
`preparation` (Python environment and setup command), `ranks` (one generation), `processes` (start and
kill through the reaper and the warm process), `uplink` (the connection to the control plane),
`packages` (Python environments by content). `docs/dev/supervisor.md` describes them together.

The control plane is reached over HTTP with the messages of `schemas.wire` alone: no module of
`services`, `store` or `executors` may be imported here.
"""
