"""The life of a job: submit, launch, follow, stop, retention.

`commit` alone writes to the event log: it applies events with the core's job machine and stores the
outcome. Events come from `submit`, `requests` (users and timers), `sync` with `reports`
(supervisors), `dispatch` (results of commands) and `polling` (deaths). `admission` rejects jobs
that could never start, `assignments` builds what a supervisor is given, `code` keeps uploaded
archives, `retention` deletes expired data.
"""
