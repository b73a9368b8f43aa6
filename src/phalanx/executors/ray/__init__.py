"""Supervisors as actors of a Ray cluster: a pool is a cluster, an attempt one placement group.

`executor` is the control plane's side; it speaks to `driver`, a process of its own that is a Ray driver,
because Ray ends its drivers when the head is away for long. `host` is the actor on a node, `shim` the
process that ties a supervisor to it. Nothing but these four knows Ray. This file imports nothing: the
shim starts with the standard library alone.
"""
