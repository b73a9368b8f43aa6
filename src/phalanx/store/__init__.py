"""Tables, migrations, the event log, the outbox and leases: the only package that speaks SQL.

`Store.transact` runs a function in one short write transaction and `Store.view` in a read-only one; the
modules beside it hold functions on the transaction they are given. Nothing here decides anything, calls
the network, starts a process or reads a clock.
"""

from phalanx.store.database import Store, Touched, Tx, open_store

__all__ = ["Store", "Touched", "Tx", "open_store"]
