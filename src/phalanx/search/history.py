"""What a model learns from: a study's observations on one scale, and not too many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeVar

from phalanx.core.search.expressions import Value
from phalanx.core.search.observations import MAX_OBSERVATIONS, NUM_BEST, NUM_NEWEST
from phalanx.core.search.sampling import Observation, SampleRequest

#: Trials of other studies that a model learns from beyond the number of its own.
_FOREIGN: Final = 10
_NORMAL: Final = NormalDist()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrialHistory:
    """Params and scores that a model learns from; a lower score is better, about half are below 0."""

    finished: tuple[dict[str, Value], ...]
    scores: tuple[float, ...]
    #: trials without a result yet
    running: tuple[dict[str, Value], ...]
    #: trials of other studies, and their scores within their own study
    foreign: tuple[dict[str, Value], ...] = ()
    foreign_scores: tuple[float, ...] = ()


def history(request: SampleRequest, limit: int = MAX_OBSERVATIONS) -> TrialHistory:
    """The trials of a request as a model gets them, in the order of their numbers.

    Values become normal scores by rank, so that outliers and scale do no harm. A trial that ended
    without a result counts as worse than all with one: forgotten, its region would be asked for again.
    """
    trials = thinned(request.observations, limit)
    ended = [one for one in trials if not one.is_running]
    if not any(one.is_finite for one in ended):
        ended = []
    foreign = _foreign(request, len(ended) + _FOREIGN)
    return TrialHistory(
        finished=tuple(one.params for one in ended),
        scores=normal_scores([_value(one) for one in ended]),
        running=tuple(one.params for one in trials if one.is_running),
        foreign=tuple(params for params, _ in foreign),
        foreign_scores=tuple(score for _, score in foreign),
    )


def number_option(request: SampleRequest, name: str, default: float) -> float:
    """An option of the method, or its default."""
    given = request.options.get(name)
    return default if given is None else float(given)


def thinned(trials: Sequence[Observation], limit: int = MAX_OBSERVATIONS) -> list[Observation]:
    """At most about `limit` trials: every running one, the best, the newest, an even sample of the rest."""
    if len(trials) <= limit:
        return list(trials)
    running = [i for i, one in enumerate(trials) if one.is_running][-limit:]
    ended = [i for i, one in enumerate(trials) if not one.is_running]
    room = max(limit - len(running), 0)
    kept = set(sorted(ended, key=lambda i: (_value(trials[i]), i))[: room * NUM_BEST // limit])
    kept.update(ended[len(ended) - room * NUM_NEWEST // limit :])
    rest = [i for i in ended if i not in kept]
    kept.update(_evenly(rest, room - len(kept)))
    return [trials[i] for i in sorted(kept.union(running))]


def normal_scores(values: Sequence[float]) -> tuple[float, ...]:
    """The normal quantile of each value's rank (Blom 1958); equal values share the mean of their ranks.

    NaN is not accepted; infinity is the worst.
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    scores = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        rank = (start + 1 + end) / 2
        for at in order[start:end]:
            scores[at] = _NORMAL.inv_cdf((rank - 0.375) / (len(values) + 0.25))
        start = end
    return tuple(scores)


def _value(one: Observation) -> float:
    return one.value if one.is_finite and one.value is not None else math.inf


def _evenly(items: Sequence[T], count: int) -> Iterable[T]:
    if count <= 0:
        return ()
    if count >= len(items):
        return items
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def _foreign(request: SampleRequest, limit: int) -> list[tuple[dict[str, Value], float]]:
    """Trials of other studies that fit this space, scored within their study; the best and a sample."""
    found: list[tuple[dict[str, Value], float]] = []
    for study in request.prior:
        ended = [one for one in study if one.is_finite]
        scores = normal_scores([_value(one) for one in ended])
        fit = [
            (one.params, score)
            for one, score in zip(ended, scores, strict=True)
            if not request.space.violations(one.params)
        ]
        found += sorted(fit, key=lambda pair: pair[1])
    if len(found) <= limit:
        return found
    found.sort(key=lambda pair: pair[1])
    return [*found[: limit // 2], *_evenly(found[limit // 2 :], limit - limit // 2)]
