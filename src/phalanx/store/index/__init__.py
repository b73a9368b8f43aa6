"""Rows that repeat columns of wider ones, so that a search need not read those.

They are written in the transactions that change what they repeat, and nothing is decided by them.
"""
