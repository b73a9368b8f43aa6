"""Schedules of jobs, and what became of their due times."""
