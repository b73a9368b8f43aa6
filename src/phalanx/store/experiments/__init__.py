"""Rows of runs as experiments: parameters, the words that queries find runs by, and queries as SQL."""
