"""The alerts of the platform as one table: `ALERTS` in `table` is the only source of their conditions.

`conditions` has the expressions, `prometheus` makes rules of them, `alertmanager` an example of routing.
The runbooks in `docs/runbooks` and the tests are held against the table.
"""
