"""Quotas of users on the whole platform, what counts against submissions, and alerts of quotas."""
