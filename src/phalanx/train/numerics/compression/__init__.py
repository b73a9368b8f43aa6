"""Gradient compression for replicas: fewer bytes between ranks, without losing any part of a gradient.

Read `hook` first (one hook of DDP per replica), then `method_choice` (the method of a step), `codecs` (the
methods) and `error_feedback` (what was not sent yet). State is keyed by parameter name, so a resume is
exact under any grouping of gradients into buckets. A method with several collectives waits for the last
bucket: collectives that start in several buckets' callbacks may start in another order on each rank, and
then hang. Nothing here exchanges weights: `local_sgd` does.
"""

from phalanx.train.numerics.compression.hook import CompressionContext, Compressors
from phalanx.train.settings import COMPRESSIONS, CompressionSettings

__all__ = ["COMPRESSIONS", "CompressionContext", "CompressionSettings", "Compressors"]
