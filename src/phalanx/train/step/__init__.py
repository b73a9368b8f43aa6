"""The training step: backward, reduce, judge, clip, rate, commit, and the boundary between steps."""
