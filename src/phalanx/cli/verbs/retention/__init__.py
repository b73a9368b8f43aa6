"""Verbs about what stays of jobs: archive, pin and delete."""
