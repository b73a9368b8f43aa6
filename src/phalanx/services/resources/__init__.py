"""Pools, nodes, projects and clusters."""
