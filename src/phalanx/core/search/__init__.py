"""Hyperparameter search as pure functions and values: spaces, draws, and what samplers are asked.

Start with `space` (parameters, conditions, constraints), then `sampling` (the request for a suggestion
and its answer) and `draw` (suggestions without a model). Only the standard library; samplers that
learn are in `phalanx.search`.
"""
