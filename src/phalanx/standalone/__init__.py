"""One process for one machine: the control plane with the local executor. The embedded default.

Wiring only: prepares the home, takes its lock, binds the socket, says where it is. What it wires
lives in `server` and `executors.local`.
"""
