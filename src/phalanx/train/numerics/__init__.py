"""Numerics of a step: how gradients and weights are computed, scaled and exchanged.

`precision` (autocast, the loss scale), `batch_norm` (statistics over all ranks), `recompute` (activation
checkpointing) and `gradients` (norms, clipping) change one model or one step; `kernels` makes the first
calls of CPU functions; `compression/` changes how
replicas send gradients, and `local_sgd/` exchanges weights instead. Nothing here decides whether a step is
applied (`train.step`) or how ranks hold a model (`train.parallel`).
"""
