"""Workload models of parallel machines from the literature, with run times that users overestimate.

Lublin and Feitelson, "The workload on parallel supercomputers", JPDC 63(11), 2003: sizes from a
two-stage uniform distribution of their logarithm, run times from a hyper-gamma distribution that
depends on the size, arrivals from gamma distributions over a daily cycle; here its constants for all
jobs together. Downey, "A parallel workload model and its implications for processor allocation",
HPDC 1997: logarithms of sizes and of service are uniform; the bounds are those of this module.

Estimates: a uniform factor of 1 to 5 on the run time (the f-model of Mu'alem and Feitelson, TPDS
12(6), 2001), raised to the next of the round values that people write (Tsafrir, Etsion and
Feitelson, JSSPP 2005). Gangs take equal shares of the fewest nodes, rounded up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from phalanx.sim.jobs import TraceJob, fewest_nodes

_HOUR_S = 3600.0
_SERIAL, _POWER_OF_2 = 0.244, 0.576
_SMALLEST, _MEDIUM_BELOW, _MEDIUM_PROBABILITY = 0.8, 2.5, 0.86
_SHORT, _LONG = (4.2, 0.94), (312.0, 0.03)
_SHORT_BY_NODE, _SHORT_AT_0 = -0.0054, 0.78
_LONGEST = 12.0  # logarithm of seconds
_RUSH, _RUSH_TO_ALL = (10.2303, 0.4871), 1.0225
_DAY = (8.1737, 3.9631)
_BUCKETS, _FIRST_BUCKET = 48, 11  # half hours of a day; the busy time begins in the 11th
_GUESSES_S = tuple(
    60.0 * minutes
    for minutes in (1, 5, 10, 15, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 720, 1080)
) + tuple(day * 24 * _HOUR_S for day in (1, 1.5, 2, 3, 4, 7, 14, 30))


def lublin(
    num_jobs: int, num_slots: int, load: float = 0.9, node_size: int = 8, seed: int = 0
) -> list[TraceJob]:
    """Draw jobs of the Lublin-Feitelson model for a machine of `num_slots` slots.

    Arrivals are stretched so that `load` times `num_slots` slots are wanted on average.
    """
    rng = random.Random(seed)
    rows = []
    for at_s in _arrivals(rng, num_jobs):
        slots = min(_lublin_size(rng, math.log2(num_slots)), num_slots)
        rows.append((at_s, slots, _lublin_run_s(rng, slots)))
    return _stretched(rng, rows, load * num_slots, node_size)


def downey(
    num_jobs: int, num_slots: int, load: float = 0.9, node_size: int = 8, seed: int = 0
) -> list[TraceJob]:
    """Draw rigid jobs with log-uniform sizes and service, up to a quarter of the machine.

    Service is between 10 and 10 million slot-seconds, and a run at most five days.
    """
    rng = random.Random(seed)
    rows = []
    at_s = 0.0
    for _ in range(num_jobs):
        at_s += rng.expovariate(1.0)
        slots = max(1, round(2.0 ** (rng.random() * math.log2(num_slots / 4))))
        service_s = 10.0 ** (1.0 + 6.0 * rng.random())
        rows.append((at_s, slots, min(max(service_s / slots, 10.0), 5 * 24 * _HOUR_S)))
    return _stretched(rng, rows, load * num_slots, node_size)


def guessed_limit(rng: random.Random, run_s: float) -> float:
    """Draw the limit that a user declares for a run, seconds."""
    wanted = run_s * (1.0 + 4.0 * rng.random())
    return next((guess for guess in _GUESSES_S if guess >= wanted), wanted)


def _stretched(
    rng: random.Random, rows: list[tuple[float, int, float]], wanted: float, node_size: int
) -> list[TraceJob]:
    """Make jobs of (arrival, slots, run); arrivals are scaled to ask for `wanted` slots on average."""
    demand = sum(slots * run_s for _, slots, run_s in rows)
    scale = demand / wanted / max(rows[-1][0], 1e-9)
    return [
        TraceJob(
            num,
            at_s * scale,
            run_s,
            fewest_nodes(slots, node_size),
            limit_s=guessed_limit(rng, run_s),
        )
        for num, (at_s, slots, run_s) in enumerate(rows, start=1)
    ]


def _lublin_size(rng: random.Random, largest: float) -> int:
    drawn = rng.random()
    if drawn <= _SERIAL:
        return 1
    medium = largest - _MEDIUM_BELOW
    if rng.random() <= _MEDIUM_PROBABILITY:
        power = rng.uniform(_SMALLEST, medium)
    else:
        power = rng.uniform(medium, largest)
    if drawn <= _SERIAL + _POWER_OF_2:
        power = round(power)
    return int(2.0**power + 0.5)


def _lublin_run_s(rng: random.Random, slots: int) -> float:
    short = min(max(_SHORT_BY_NODE * slots + _SHORT_AT_0, 0.0), 1.0)
    while True:
        alpha, beta = _SHORT if rng.random() <= short else _LONG
        drawn = rng.gammavariate(alpha, beta)
        if drawn <= _LONGEST:
            return max(math.exp(drawn), 1.0)


def _arrivals(rng: random.Random, num_jobs: int) -> Iterator[float]:
    """Yield times: each gap costs points, which a half hour of the day provides by its share of jobs."""
    weights = _weights()
    bucket_s = 24 * _HOUR_S / _BUCKETS
    at_s = 0.0
    for _ in range(num_jobs):
        points = math.exp(rng.gammavariate(_RUSH[0] * _RUSH_TO_ALL, _RUSH[1]))
        while points > 0:
            rate = weights[int(at_s // bucket_s) % _BUCKETS]
            left_s = bucket_s - at_s % bucket_s
            gone_s = min(left_s, points / rate)
            points -= gone_s * rate if gone_s < left_s else left_s * rate
            # A bucket's end may be missed by rounding: its last microsecond is part of the next.
            at_s += gone_s + (1e-6 if gone_s == left_s else 0.0)
        yield at_s


def _weights() -> list[float]:
    """Return the arrivals in each half hour of the day, relative to their mean."""
    weights = [0.0] * _BUCKETS
    for i in range(_FIRST_BUCKET, _FIRST_BUCKET + _BUCKETS):
        # Simpson's rule over one bucket of the gamma distribution.
        inside = _density(i - 0.5) + 4 * _density(float(i)) + _density(i + 0.5)
        weights[(i - 1) % _BUCKETS] = inside / 6
    total = sum(weights)
    return [max(weight * _BUCKETS / total, 1e-3) for weight in weights]


def _density(x: float) -> float:
    alpha, beta = _DAY
    logarithm = (alpha - 1) * math.log(x) - x / beta - math.lgamma(alpha) - alpha * math.log(beta)
    return math.exp(logarithm)
