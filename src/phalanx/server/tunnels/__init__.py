"""Tunnels between clients and the supervisors of running jobs.

Both sides call the control plane; it passes bytes on and opens no connection itself. `registry` has the
tunnels of this process, `routes` the calls of both sides.
"""
