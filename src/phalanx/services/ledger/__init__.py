"""The cost ledger of jobs: rows that are settled as attempts end, and what running jobs use now.

`settle` writes the rows, in the transaction in which a job's state changes; `accounts` reads them. Nothing
here decides about jobs.
"""
