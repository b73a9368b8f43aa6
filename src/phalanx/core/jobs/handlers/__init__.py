"""Handlers of the job machine, one module for each group of events.

A handler takes (job, event, now in microseconds) and returns a `Decision`. It runs only in the states
that its row of `core.jobs.machine` names, for the live attempt and generation. `steps` holds what several
handlers do; a handler never calls another module's handler.
"""
