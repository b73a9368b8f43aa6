"""The control plane's program: HTTP API, loops, pages and Prometheus metrics.

Read `app` (wiring and `serve`), `context`, `loops.steps`, then `routers`. Every decision is made in
`services`: routes and loops only call one service each. Only `settings` reads the environment.
"""
