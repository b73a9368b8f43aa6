"""Jobs that belong together: dependencies.

`dependencies` turns what happens to one job into events of the jobs that wait for it.
`services.lifecycle.commit` calls it for every change, in the transaction of that change, so no crash can
come between the two.
"""
