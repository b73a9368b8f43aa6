"""Verbs that reach into a running job: `exec` and `port-forward`, through tunnels of the control plane."""
