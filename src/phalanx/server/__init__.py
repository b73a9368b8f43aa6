"""The control plane's program: API, loops, pages, metrics. `app` wires; nobody else does."""
