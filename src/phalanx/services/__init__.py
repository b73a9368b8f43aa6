"""One function per use case: load, ask the core, save, in one short transaction.

No network call and no process start inside a transaction. One step of every loop lives here, so that
tests drive loops on a virtual clock.
"""
