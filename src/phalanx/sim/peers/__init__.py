"""Other schedulers, reimplemented behind the production interface for fair comparisons.

They use the same index, stops, restarts and reservations; only the policy differs.
"""
