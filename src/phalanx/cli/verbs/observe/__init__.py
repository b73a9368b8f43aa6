"""Verbs about the platform as a whole: its alerts and objectives."""
