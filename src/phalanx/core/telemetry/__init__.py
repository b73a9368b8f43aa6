"""Measurements of ranks and the platform: instruments, profiles, traces, line patterns."""
