"""Secrets of projects and of the whole platform: set, list, remove, and read them for a launch."""
