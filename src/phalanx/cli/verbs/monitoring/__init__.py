"""Verbs about watching the platform with other programs."""
