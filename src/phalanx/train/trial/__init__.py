"""A run as the trial of a study: its parameters, its reports, and the wait at its target.

`params` is what `run.params` returns; `reporting` writes reports and waits for a raised target;
`methods` is what a script calls. `train/step/rung.py` saves and leaves at the target.
"""
