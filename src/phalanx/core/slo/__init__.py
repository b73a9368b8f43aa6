"""Objectives, error budgets and burn rates: which part of a budget is spent how fast.

`burn` has the pairs of windows of burn rates.
"""
