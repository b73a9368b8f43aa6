"""Parallel strategies: replicas, shards, tensor parallel grids, pipelines."""
