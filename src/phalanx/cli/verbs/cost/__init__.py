"""Verbs about cost: reports of slot time and money, and budgets."""
