"""Tags of resources, for requests that change one only as it was read.

A tag is computed from the rows that changing routes write, in the transaction that asks for it.
"""
