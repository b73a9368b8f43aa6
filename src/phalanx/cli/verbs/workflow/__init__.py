"""Verbs about submissions that the control plane makes by itself: templates and schedules."""
