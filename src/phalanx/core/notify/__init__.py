"""Alerts without Prometheus: conditions on samples, the life of an alert, messages, and their delivery.

Everything is pure: samples, times and random numbers are arguments. May not live here: the table of alerts
(`core.alerts`), reading samples, sending anything.
"""
