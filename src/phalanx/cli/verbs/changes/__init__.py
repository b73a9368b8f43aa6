"""Verbs that change jobs after their submission."""
