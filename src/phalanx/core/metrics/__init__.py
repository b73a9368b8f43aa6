"""The catalogue of every metric that the platform exports: `CATALOGUE` is the only source of their names.

The exposition, the totals in the database, the reference page and the recording rules are made from it.
"""
