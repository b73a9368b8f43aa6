"""Data residency: the rules of jobs and projects, and the stores that they name."""
