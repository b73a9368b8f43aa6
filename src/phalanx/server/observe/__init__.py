"""Metrics of the platform and of live jobs in the text format of Prometheus.

`exposition` answers a scrape. It reads the news since the last one into `fleet` (counters of the
platform) and `training` (series of live jobs).
"""
