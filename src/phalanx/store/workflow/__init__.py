"""Rows that connect jobs with each other: which job waits for which."""
