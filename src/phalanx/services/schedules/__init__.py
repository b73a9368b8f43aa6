"""Schedules: cron expressions, changes of schedules, and the step that starts their jobs.

Nothing here stores a job by itself: every job goes through the checks of a submission by its owner.
"""
