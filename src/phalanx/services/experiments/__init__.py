"""Queries over runs: pages of jobs with their parameters and metrics."""
