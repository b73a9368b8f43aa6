"""Lease work, execute outbox commands, poll executors: the only callers of executors."""
