"""Messages between the control plane and its supervisors.

`assignments` is the file that a supervisor starts from, `supervision` the call `sync`.
"""

PROTOCOL = 1
"""Of the call `sync`: the control plane speaks this one and the one before it."""
ASSIGNMENT_PROTOCOL = 2
"""Of the assignment's file: a supervisor reads this one. 1 had no contract of the gang."""
