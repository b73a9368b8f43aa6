"""Searches: candidate sets of victims and the cheapest set that makes room."""
