"""Bodies about runs as experiments."""
