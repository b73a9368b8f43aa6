"""What jobs cost, as pure functions and values: the account of slot time, and prices.

`ledger` divides the time of an attempt among accounts, `price_table`, `prices` and `totals` give it money,
`budgets` limit both. Only integers: microseconds times slots, so that the accounts of a job add up exactly.
"""
