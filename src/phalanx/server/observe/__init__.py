"""Metrics, dashboards and alert rules as code."""
