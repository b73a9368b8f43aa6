"""What jobs cost, as pure functions and values: the account of slot time, and prices.

`ledger` divides the time of an attempt among accounts, `storage` adds up kept bytes; `price_table`,
`prices` and `totals` give them money. `budgets` limit it, `units` divide it by what a job made, `advice`
names savings.
Only integers: microseconds times slots or bytes, so that the accounts of a job add up exactly.
"""
