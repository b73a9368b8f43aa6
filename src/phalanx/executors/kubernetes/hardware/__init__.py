"""Devices of nodes that need more than a number: TPU slices, labels of GPUs, drivers of dynamic resources.

Everything here is a pure function or a small memory over plain objects; time is an argument.
"""
