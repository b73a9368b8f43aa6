"""Rows of what jobs keep in stores, and their sums by day."""
