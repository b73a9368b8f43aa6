"""HTTP routes: each parses a request, calls one service and returns its view.

`jobs` and `telemetry` are about one job, `resources` about pools, nodes and projects, `platform` about the
control plane and uploaded code, `tokens` about access, `supervisors` about the nodes that run jobs. `gate`
has checked host name, token and scope before a route is called; routes for supervisors check the token of
the supervisor themselves. A long poll is `Context.poll_until`.
"""
