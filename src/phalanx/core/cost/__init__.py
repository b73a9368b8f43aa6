"""What jobs cost, as pure functions and values: the account of slot time, and prices.

`ledger` divides the time of an attempt among accounts, `prices` and `totals` give it money, `budgets` limit
both. Only integers: microseconds times slots, so that the accounts of any job add up exactly.
"""
