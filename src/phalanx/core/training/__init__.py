"""Arithmetic of training: batches, positions, checkpoints, guards, learning rates, estimates."""
