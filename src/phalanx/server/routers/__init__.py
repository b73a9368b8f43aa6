"""HTTP routes: each parses a request, calls one service and returns its view.

`jobs` and `telemetry` are about one job, `resources` about pools, nodes and projects, `platform` about the
control plane and uploaded code, `supervisors` about the nodes that run jobs. `gate` has checked host name
and token before a route is called; routes for supervisors check the supervisor's token themselves. A long
poll is `Context.poll_until`.
"""
