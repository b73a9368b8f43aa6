"""Process trees: start them, identify them across restarts, kill them whole, and capture their output.

Lives here: the reaper (a subreaper that survives its supervisor just long enough to kill what is left),
the wire between supervisor, reaper and warm process, the recognition of Python commands, captured
streams. May not live here: what a rank is for, generations, the control plane, or anything that needs
more than the standard library.
"""
