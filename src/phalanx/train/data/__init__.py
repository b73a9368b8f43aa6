"""Data for training: loaders with positions, the order of samples, streams, shares of ranks."""
