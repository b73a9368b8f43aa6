"""Numerics of a step: precision, batch norm, recomputation, gradients, compression, local SGD."""
