"""The job state machine: it computes a new job state and commands from a job and an event.

Reading order: `model` (the job, its live attempt, and the decision of a handler with its commands),
`events`, `machine` (the table: one row an event, one column a group of states; and the events due by the
clock), `handlers` (one module for each group of events; `generation` decides on restarts, over `budgets`),
`desired` (the desired state of each supervisor). Nothing here reads a clock, a database or the scheduler.
Commands are executed outside the core: they are idempotent, and fenced by the attempt's number. How to
extend it: docs/dev/job-machine.md.
"""
