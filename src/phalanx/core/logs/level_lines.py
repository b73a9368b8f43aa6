"""Lines with a level, looked for in a whole text at once: most lines are passed over quickly."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.core.logs.grams import may_contain, places
from phalanx.core.logs.levels import NAMED, TRACEBACK, WORDS, LogLevel, level_of

# WARNING is found with WARN.
_CAPITALS = tuple(one for one in WORDS if one != b"WARNING")
# Where an expression decides; the place of the match is one byte before some of them.
_OTHERS = ((b"evel", NAMED, 1), (b"EVEL", NAMED, 1), (b"Trac", TRACEBACK, 0))
_SIGNS = (*_CAPITALS, *(one for one, _, _ in _OTHERS))
_LONGEST = max(map(len, WORDS))
_IS_WORD = np.zeros(256, dtype=np.bool_)
_IS_WORD[[one for one in range(128) if chr(one).isalnum() or chr(one) == "_"]] = True
_Places = NDArray[np.int64]
_NONE: _Places = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Found:
    """The lines of a text that may have a level, by their numbers."""

    breaks: _Places  # where lines end
    lines: _Places  # with a level …
    levels: _Places  # … and these levels
    alone: _Places  # lines that are judged by what a terminal shows of them


def possible_signs(bits: bytes) -> frozenset[bytes]:
    """The signs of levels that a text with this bitmap may have."""
    return frozenset(one for one in _SIGNS if may_contain(bits, places(one[:4])))


def lines_with_levels(text: bytes, begin: int, end: int) -> Iterator[tuple[int, int, LogLevel]]:
    """The lines in [begin, end) of a text that have a level, as (begin, end, level), in their order."""
    part = text[begin:end]
    found = _look(part, _SIGNS)
    if found is None:
        return
    known = dict(zip(found.lines.tolist(), found.levels.tolist(), strict=True))
    known |= dict.fromkeys(found.alone.tolist(), 0)
    ends = [*found.breaks.tolist(), len(part)]
    for line in sorted(known):
        start, stop = ends[line - 1] + 1 if line else 0, ends[line]
        level = LogLevel(known[line]) if known[line] else level_of(part[start:stop])
        if level is not None:
            yield begin + start, begin + stop, level


def count_levels(
    text: bytes, begin: int, end: int, signs: Collection[bytes] = _SIGNS
) -> dict[LogLevel, int]:
    """How many lines in [begin, end) of a text have each level; `signs` are those that it may have."""
    part = text[begin:end]
    found = _look(part, signs)
    if found is None:
        return {}
    sure = found.levels[~np.isin(found.lines, found.alone)] if found.alone.size else found.levels
    numbers = np.bincount(sure, minlength=max(LogLevel) + 1)
    counts = {one: int(numbers[one]) for one in LogLevel if numbers[one]}
    ends = [*found.breaks.tolist(), len(part)] if found.alone.size else []
    for line in found.alone.tolist():
        level = level_of(part[ends[line - 1] + 1 if line else 0 : ends[line]])
        if level is not None:
            counts[level] = counts.get(level, 0) + 1
    return counts


def _look(part: bytes, signs: Collection[bytes]) -> _Found | None:
    """The lines that may have a level; None: there are none."""
    if not signs:
        return None
    bytes_ = np.frombuffer(part, dtype=np.uint8)
    fours = _fours(part)
    pairs = [*_capitals(bytes_, fours, signs), *_others(part, fours, signs)]
    if not any(one[0].size for one in pairs):
        return None
    at = np.concatenate([one[0] for one in pairs])
    order = np.argsort(at, kind="stable")
    breaks = np.flatnonzero(bytes_ == ord("\n"))
    lines, first = np.unique(np.searchsorted(breaks, at[order]), return_index=True)
    alone = _NONE
    if b"\r" in part:
        alone = np.unique(np.searchsorted(breaks, np.flatnonzero(bytes_ == ord("\r"))))
    return _Found(breaks, lines, np.concatenate([one[1] for one in pairs])[order][first], alone)


def _capitals(
    bytes_: NDArray[np.uint8], fours: list[NDArray[np.uint32]], signs: Collection[bytes]
) -> Iterator[tuple[_Places, _Places]]:
    """Where levels stand in capitals as words of their own, and which."""
    padded: NDArray[np.uint8] | None = None
    for word in _CAPITALS:
        at = _places(fours, word[:4]) if word in signs else _NONE
        if not at.size:
            continue
        if padded is None:
            padded = np.zeros(len(bytes_) + _LONGEST + 2, dtype=np.uint8)
            padded[1 : len(bytes_) + 1] = bytes_
        for more in range(4, len(word)):
            at = at[padded[1 + at + more] == word[more]]
        ends = at + len(word)
        if word == b"WARN":
            longer = np.ones(at.size, dtype=np.bool_)
            for more, sign in enumerate(b"ING"):
                longer &= padded[1 + at + 4 + more] == sign
            ends = ends + 3 * longer
        at = at[~_IS_WORD[padded[at]] & ~_IS_WORD[padded[1 + ends]]]
        yield at, np.full(at.size, int(WORDS[word]), dtype=np.int64)


def _others(
    part: bytes, fours: list[NDArray[np.uint32]], signs: Collection[bytes]
) -> Iterator[tuple[_Places, _Places]]:
    """Where a level stands behind its name, or a traceback begins, and which."""
    for sign, expression, before in _OTHERS:
        places_, levels = [], []
        for at in _places(fours, sign).tolist() if sign in signs else ():
            match = expression.match(part, at - before) if at >= before else None
            if match is not None:
                places_.append(at - before)
                levels.append(WORDS[match[1].upper()] if before else LogLevel.ERROR)
        yield np.array(places_, dtype=np.int64), np.array(levels, dtype=np.int64)


def _fours(part: bytes) -> list[NDArray[np.uint32]]:
    """The text in groups of four bytes, from its first four places."""
    return [
        np.frombuffer(part, dtype="<u4", count=max(0, (len(part) - shift) // 4), offset=shift)
        for shift in range(min(4, len(part)))
    ]


def _places(fours: list[NDArray[np.uint32]], word: bytes) -> _Places:
    """Where a word of four bytes stands."""
    wanted = np.frombuffer(word, dtype="<u4")[0]
    found = [4 * np.flatnonzero(one == wanted) + shift for shift, one in enumerate(fours)]
    return np.concatenate(found) if found else _NONE
