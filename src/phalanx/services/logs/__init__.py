"""Stored output of ranks: packed, read and searched.

`packing` makes packs of segments, `reading` joins packs with newer segments, `search` finds lines in both.
Segments arrive in `services.lifecycle.reports`; pages of lines are made in `services.queries.logs`.
"""
