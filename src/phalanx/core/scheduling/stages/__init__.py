"""The stages of a pass, each a function of the `Pass`.

Start with `scheduling_pass` (the shared objects) and `queue` (the order of jobs). A stage decides by adding
to `Pass.decisions`; a new one is a function here and one line in `planner`.
"""
