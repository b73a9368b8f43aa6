"""The training step and what surrounds it.

Read `engine` first: reduce, unscale, judge, clip, rate, commit, and the boundary between two steps. It
uses `progress` (where training is), `guard` and `divergence` (what refuses a step), `policies` (precision,
batch, rate), `save_schedule` (when to save) and `trained` (the state). `preparation` is what
`run.prepare` does. Nothing here wires parts together; that is `train/start.py`.
"""
