"""Tunnels between a client and a node of a running job: commands and connections that a user asked for.

`frames` is the format of what goes through, `streams` the bytes of one direction with repeatable transfers,
`model` one tunnel with its time limits. Pure: time is an argument, nothing waits.
"""
