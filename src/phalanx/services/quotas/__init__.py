"""Quotas: the limit on submitted jobs, use against every quota, and alerts."""
