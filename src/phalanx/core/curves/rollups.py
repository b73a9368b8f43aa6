"""Roll-ups: intervals of steps with the lowest, highest, first and last sample, the sum and the count.

A series with up to `SHORT` samples is kept as it is. A longer one has levels: an interval of level 0 has 32
times the usual distance of its steps, one of a higher level 32 of the level below. Every level is cut into
pages of 1024 intervals; a level exists when the one below has more than one page. The numbers of intervals
and pages are those of steps, so that a step that is reported again changes only the intervals around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phalanx.core.curves import Reduce
from phalanx.core.curves.columns import Floats, Ints, Samples, joined

SHORT = 1024
"""The most samples of a series that is kept as it is."""
FACTOR = 32
PAGE = 1024
"""Intervals in one page."""
_KINDS = ("first", "low", "high", "last")
_FIELDS: list[tuple[str, str]] = [("count", "<u4"), ("finite", "<u4"), ("sum", "<f8")]
for _one in _KINDS:
    _FIELDS += [(_one, "<f8"), (f"{_one}_step", "<i8"), (f"{_one}_time", "<i8")]
INTERVAL = np.dtype(_FIELDS)
SAMPLE = np.dtype([("step", "<i8"), ("value", "<f8"), ("time", "<i8")])
Intervals: TypeAlias = NDArray[Any]
"""An array of `INTERVAL`, in the order of steps."""


def width_of(stride: int, level: int) -> int:
    """Steps in one interval of a level."""
    return stride * int(FACTOR ** (level + 1))


def stride_of(samples: Samples) -> int:
    """The usual distance between two steps of a series, from its first samples."""
    if len(samples) < 2:
        return max(1, int(samples.steps[0])) if len(samples) else 1
    return max(1, int(np.median(np.diff(samples.steps))))


def intervals_of(samples: Samples) -> Intervals:
    """Each sample as an interval of its own."""
    found = np.empty(len(samples), INTERVAL)
    is_finite = np.isfinite(samples.values)
    found["count"], found["finite"] = 1, is_finite
    found["sum"] = np.where(is_finite, samples.values, 0.0)
    for kind in _KINDS:
        found[kind] = samples.values
        found[f"{kind}_step"], found[f"{kind}_time"] = samples.steps, samples.times
    return found


def by_step(fine: Intervals, width: int) -> Intervals:
    """Reduce to intervals of `width` steps, which begin at multiples of it."""
    return _reduced(fine, fine["last_step"] // width)


def intervals_by_step(samples: Samples, width: int) -> Intervals:
    """`by_step(intervals_of(samples), width)` in a fraction of the time; the samples are sorted by step."""
    groups = samples.steps // width
    starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    ends = np.append(starts[1:], len(samples))
    found = np.empty(len(starts), INTERVAL)
    is_finite = np.isfinite(samples.values)
    found["count"] = ends - starts
    found["finite"] = np.add.reduceat(is_finite, starts, dtype=np.int64)
    with np.errstate(over="ignore"):
        found["sum"] = np.add.reduceat(np.where(is_finite, samples.values, 0.0), starts)
    own = np.repeat(np.arange(len(starts)), ends - starts)
    heights = np.where(is_finite, samples.values, np.inf)
    places = {
        "first": starts,
        "low": _extremes(heights, starts, own, np.minimum),
        "high": _extremes(heights, starts, own, np.maximum),
        "last": ends - 1,
    }
    for kind, here in places.items():
        found[kind] = samples.values[here]
        found[f"{kind}_step"], found[f"{kind}_time"] = samples.steps[here], samples.times[here]
    return found


def _extremes(heights: Floats, starts: Ints, own: Ints, least: np.ufunc) -> Ints:
    """The first place of the extreme of each group; `own` has the group of each place."""
    hits = np.flatnonzero(heights == least.reduceat(heights, starts)[own])
    return hits[np.searchsorted(own[hits], np.arange(len(starts)))]


def by_number(fine: Intervals, many: int) -> Intervals:
    """Reduce to `many` intervals with about the same number of those before."""
    return _reduced(fine, np.arange(len(fine)) * many // max(1, len(fine)))


def _reduced(fine: Intervals, groups: Ints) -> Intervals:
    """One interval for each run of equal numbers in `groups`."""
    if not len(fine):
        return fine
    starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    if len(starts) == len(fine):
        return fine
    ends = np.append(starts[1:], len(fine))
    found = np.empty(len(starts), INTERVAL)
    with np.errstate(over="ignore", invalid="ignore"):
        for name in ("count", "finite", "sum"):
            found[name] = np.add.reduceat(fine[name], starts)
    own = np.repeat(np.arange(len(starts)), ends - starts)
    _take(found, "first", fine, starts)
    _take(found, "last", fine, ends - 1)
    for kind, least in (("low", np.minimum), ("high", np.maximum)):
        heights = np.where(np.isfinite(fine[kind]), fine[kind], np.inf)
        _take(found, kind, fine, _extremes(heights, starts, own, least))
    return found


def _take(found: Intervals, kind: str, fine: Intervals, places: Ints) -> None:
    for name in (kind, f"{kind}_step", f"{kind}_time"):
        found[name] = fine[name][places]


def samples_in(found: Intervals) -> Samples:
    """The lowest and the highest sample of each interval, and the first and the last of all."""
    parts = [_kind(found, "low"), _kind(found, "high")]
    if len(found):
        parts = [_kind(found[:1], "first"), *parts, _kind(found[-1:], "last")]
    return joined(parts).newest()


def _kind(found: Intervals, kind: str) -> Samples:
    return Samples(found[f"{kind}_step"], found[kind], found[f"{kind}_time"])


def means_in(found: Intervals) -> Samples:
    """The mean of the finite values of each interval, at its last step; NaN where it has none."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values = found["sum"] / found["finite"]
    return Samples(found["last_step"], values, found["last_time"])


def lasts_in(found: Intervals) -> Samples:
    """The last sample of each interval."""
    return _kind(found, "last")


def pack_intervals(found: Intervals) -> bytes:
    """The bytes of a page."""
    return found.astype(INTERVAL).tobytes()


def unpack_intervals(data: bytes) -> Intervals:
    """Read a page. Raises ValueError for bytes of another length."""
    if len(data) % INTERVAL.itemsize or len(data) > PAGE * INTERVAL.itemsize:
        raise ValueError(f"a page of roll-ups with {len(data)} bytes")
    return np.frombuffer(data, INTERVAL)


def pack_samples(samples: Samples) -> bytes:
    """The bytes of a short series."""
    found = np.empty(len(samples), SAMPLE)
    found["step"], found["value"], found["time"] = samples.steps, samples.values, samples.times
    return found.tobytes()


def unpack_samples(data: bytes) -> Samples:
    """Read a short series. Raises ValueError for bytes of another length."""
    if len(data) % SAMPLE.itemsize or len(data) > SHORT * SAMPLE.itemsize:
        raise ValueError(f"a short series with {len(data)} bytes")
    found = np.frombuffer(data, SAMPLE)
    return Samples(found["step"], found["value"], found["time"])


def replaced(known: Intervals, fresh: Intervals, width: int) -> Intervals:
    """`known` with the intervals from the first to the last one of `fresh` replaced by those."""
    numbers = known["last_step"] // width
    first, last = int(fresh["last_step"][0]) // width, int(fresh["last_step"][-1]) // width
    return np.concatenate([known[numbers < first], fresh, known[numbers > last]])


def renewed(
    known: Intervals,
    fresh: Samples,
    width: int,
    last_step: int,
    stored: Callable[[int, int], Samples],
) -> Intervals:
    """The intervals that hold newer samples, made anew; `known` has those around them.

    `last_step` is the last one in the roll-ups. Steps up to there that are reported again replace what was
    reported before: `stored` reads the samples between two steps.
    """
    first, last = int(fresh.steps[0]) // width, int(fresh.steps[-1]) // width
    if fresh.steps[0] <= last_step:
        before = stored(first * width, (last + 1) * width - 1)
        return intervals_by_step(joined([before, fresh]).newest(), width)
    here = known[known["last_step"] // width == first]
    found = intervals_by_step(fresh, width)
    return by_step(np.concatenate([here, found]), width) if len(here) else found


def thinned(samples: Samples, max_points: int, reduce: Reduce = "extremes") -> Samples:
    """At most `max_points` samples: the first, the last, and the lowest and highest of each interval.

    A value that is not finite counts as highest, so that it stays visible.
    """
    if len(samples) <= max_points:
        return samples
    if reduce != "extremes":
        return _REDUCED[reduce](by_number(intervals_of(samples), max_points))
    inner = by_number(intervals_of(samples.take(slice(1, -1))), (max_points - 2) // 2)
    ends = samples.take([0, -1])
    found = [_kind(inner, "low"), _kind(inner, "high")]
    return joined([ends.take([0]), *found, ends.take([1])]).newest()


def narrowed(found: Intervals, width: int, max_points: int, reduce: Reduce = "extremes") -> Samples:
    """At most `max_points` samples of one level's intervals, on a grid of steps that all series share."""
    most = (max_points - 2) // 2 if reduce == "extremes" else max_points
    while len(found) > most:
        width *= 2
        found = by_step(found, width)
    return samples_in(found) if reduce == "extremes" else _REDUCED[reduce](found)


_REDUCED: dict[str, Callable[[Intervals], Samples]] = {"mean": means_in, "last": lasts_in}
