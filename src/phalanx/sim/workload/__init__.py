"""Workloads of simulations: traces, generated jobs, storms, faults."""
