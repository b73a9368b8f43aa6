"""The warm process: a Python process that has imported torch and forks ranks."""
