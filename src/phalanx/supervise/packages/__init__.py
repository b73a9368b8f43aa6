"""The Python environment of a job: built once on a node for one content, and used by many attempts.

`requirements` reads the spec's section `python` and gives it a digest; `interpreter` describes the
interpreter that the environment is based on; `environments` stores finished environments by digest;
`plan` finds the environment of an assignment; `build` is the program that builds one. All of it needs the
standard library alone: it works in the first moments of a supervisor, or in a process of its own.
`preparation` has a missing environment built before the ranks start.
"""
