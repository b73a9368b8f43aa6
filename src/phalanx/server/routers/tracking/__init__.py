"""Routes about runs as experiments."""
