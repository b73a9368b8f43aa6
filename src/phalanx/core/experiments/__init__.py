"""Runs as experiments: the parameters that a job ran with, and the language that finds runs.

`parameters` reads them from arguments and configuration files, `query` parses a query. Everything is pure.
May not live here: reading files, SQL.
"""
