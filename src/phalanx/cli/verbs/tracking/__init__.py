"""Verbs about runs as experiments."""
