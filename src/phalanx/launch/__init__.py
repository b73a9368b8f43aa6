"""Process trees: start them, name them for ever, kill them whole, and take down what they print.

Lives here: the reaper (a subreaper that survives its supervisor just long enough to kill what is left),
the wire between supervisor, reaper and warm process, the recognition of Python commands, captured
streams. May not live here: what a rank is for, generations, the control plane, or anything that needs
more than the standard library.
"""
