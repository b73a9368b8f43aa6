"""Everything that Prometheus and Grafana need to watch the platform, as files.

`dashboards/` has the JSON files of the dashboards, which `scripts/generate_dashboards.py` writes. `bundle`
adds what surrounds them: provisioning, recording rules, a scrape, a compose file, objects of Kubernetes.
May not live here: the metrics themselves (`core.metrics`), or anything that asks a control plane.
"""
