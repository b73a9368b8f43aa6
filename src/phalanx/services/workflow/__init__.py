"""Jobs that belong together: dependencies and arrays.

`dependencies` turns what happens to one job into events of the jobs that wait for it, and `arrays` into
those of the next elements of its array.
`services.lifecycle.commit` calls them for every change, in the transaction of that change, so no crash can
come between the two.
"""
