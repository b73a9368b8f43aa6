"""Gradient compression for replicas: fewer bytes between ranks, and nothing forgotten.

One hook per replica, with what it remembers keyed by parameter: so a run resumes exactly, under any
grouping of gradients into buckets and any number of ranks. Methods that need more than one collective
wait for the last bucket and treat a step's gradients together: collectives that are launched from
several buckets' callbacks meet in different orders on different ranks, which hangs them.
"""

from phalanx.train.numerics.compression.hook import CompressionContext, Compressors
from phalanx.train.settings import COMPRESSIONS, CompressionSettings

__all__ = ["COMPRESSIONS", "CompressionContext", "CompressionSettings", "Compressors"]
