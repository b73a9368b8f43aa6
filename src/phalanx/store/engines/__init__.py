"""What differs between the databases before the first statement: checks, connections, messages.

`postgresql` makes and checks its engine, `sqlite_file` checks a file. All other modules of the store use
the same SQL for both.
"""
