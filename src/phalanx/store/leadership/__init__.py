"""Which control plane runs the loops of a PostgreSQL database, and which others serve it.

`leases` holds the lease of the leader with its fencing token, and the check that begins each of its writes;
`replicas` lists the processes that serve the database. Time is the clock of the database in both. SQLite
uses neither: a home has one control plane.
"""
