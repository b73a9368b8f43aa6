"""Secrets at rest: their rows, and the encryption of their values."""
