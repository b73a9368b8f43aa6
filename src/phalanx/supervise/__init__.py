"""The per-node supervisor: starts ranks, watches them, carries logs, metrics and commands.

Speaks `schemas` to the control plane and knows neither its database nor its services.
"""
