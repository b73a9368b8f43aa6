"""Ranks of one node: start, watch, records, stalls, stacks, their end."""
