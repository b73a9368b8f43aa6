"""What a pass works with: ledger, decisions, and the searches for victims and for openings.

Start with `victim_search` and `victims`. A search owns its memo for one pass and decides nothing.
"""
