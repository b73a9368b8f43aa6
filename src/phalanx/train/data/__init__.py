"""Data for training: loaders with positions, the order of samples, streams, shares of ranks.

Read `loader` first (the user's loader with a position), then `ordering` (the order of a pass), `streaming`
(iterable data sets), `shares` (the part of a batch that each rank gets), `fingerprint` (whether a resume
has the same data) and `readers/` (data sets on disk and in object storage). `core.training.batches`
computes which slice of the order a batch is. Nothing here changes the position of the run: the step engine
does.
"""
