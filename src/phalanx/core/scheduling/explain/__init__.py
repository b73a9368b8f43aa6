"""Explanations: why a job waits, what would start it, when it may start."""
