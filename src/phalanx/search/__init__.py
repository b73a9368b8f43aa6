"""Samplers: which params a study's next trial gets, from nothing but the request.

`methods.suggest` answers a `core.search.sampling.SampleRequest`. It is a function: equal requests get
equal answers, in any process, so that nothing has to be restored after a crash. The methods are those
of `core.search.draw` (random, grid, quasi-random), `tpe` (Optuna), `bayesian` (a Gaussian process of our
own in numpy), `auto`, which chooses between them, and functions of plugins. `history` selects what a
model learns from.

A control plane asks through `worker.SamplerWorker`: models run in a child process
(`python -m phalanx.search`), never in the event loop of the API.
"""

from phalanx.search.methods import check, describe, suggest
from phalanx.search.worker import SamplerWorker

__all__ = ["SamplerWorker", "check", "describe", "suggest"]
