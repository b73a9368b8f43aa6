"""Fakes and contract suites, shipped so that every backend can run them.

`executors` has the fake executor and the suite of executors, `stores` the suite of databases,
`control_plane` a server that answers supervisors.
"""
