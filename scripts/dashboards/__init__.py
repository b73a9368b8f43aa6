"""The dashboards of Grafana as tables of panels. `scripts/generate_dashboards.py` writes them as JSON.

`panels` has the shape of a panel and the usual queries, `grafana` makes JSON of it, and each other module
is one dashboard.
"""
