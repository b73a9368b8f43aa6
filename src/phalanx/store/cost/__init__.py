"""Rows of the cost ledger: the slot time and the money of jobs, as reports read them."""
