"""Explanations of a pass: why a job waits, what would start it, and when it may start.

Start with `why`. Explanations run the production planner again; they decide nothing.
"""
