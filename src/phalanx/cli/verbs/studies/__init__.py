"""Verbs on studies."""
