"""Pages of rows in a chosen order, with filters, that stay the same while rows are added.

A page reads one narrow index, which holds every column that a listing filters and sorts by, and then the
few rows that it shows. Its time depends on the number of rows, not on the filter.
"""
