"""Supervisors as actors of a Ray cluster: a pool is a cluster, an attempt one placement group.

`executor` is the control plane's side; `driver_client` connects it to `driver`, a process of its own,
because Ray ends drivers when the head is away for long. `actor` runs on a node, and `shim` is the process
that binds a supervisor to it. This file imports nothing: the shim starts with the standard library alone.
"""
