"""The Python environment of a job: built once per node for one content, and used by many attempts.

`wanted` reads what is asked for and names it by its content; `interpreter` looks at the interpreter below;
`environments` keeps what was built, whole or not at all; `build` is the program that builds; `step` is
the part of the supervisor that has it built before the set-up. Everything but `step` needs the standard
library alone, as it works in the first moments of a supervisor or in a process of its own.
"""
