"""Lines with a level, looked for in a whole text at once: most lines are passed over quickly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from phalanx.core.logs.levels import WORDS, LogLevel, level_of

_LONGEST = max(map(len, WORDS))
# What a line needs so that the expression has to decide about it.
_UNSURE = (b"evel", b"EVEL", b"Trac")
_IS_WORD = np.zeros(256, dtype=np.bool_)
_IS_WORD[[one for one in range(128) if chr(one).isalnum() or chr(one) == "_"]] = True
_Places = NDArray[np.intp]


def lines_with_levels(text: bytes, begin: int, end: int) -> Iterator[tuple[int, int, LogLevel]]:
    """The lines in [begin, end) of a text that have a level, as (begin, end, level), in their order.

    Words in capitals are looked for in the whole text at once; lines that need more are judged one by one.
    """
    part = text[begin:end]
    signs = np.frombuffer(part, dtype=np.uint8)
    fours = _fours(part)
    at, levels = _capitals(part, signs, fours)
    unsure = [_places(fours, one) for one in _UNSURE]
    if at.size == 0 and not any(one.size for one in unsure):
        return
    breaks = np.flatnonzero(signs == ord("\n"))
    starts = np.concatenate(([0], breaks + 1))
    lines = np.searchsorted(breaks, at)
    known, first = np.unique(lines, return_index=True)
    asked = [np.searchsorted(breaks, one) for one in unsure]
    if b"\r" in part:
        asked.append(np.searchsorted(breaks, np.flatnonzero(signs == ord("\r"))))
    alone = np.unique(np.concatenate(asked))
    sure = dict(zip(known.tolist(), levels[first].tolist(), strict=True))
    sure |= dict.fromkeys(alone.tolist(), 0)
    begins, ends = starts.tolist(), breaks.tolist()
    for line in sorted(sure):
        start = begins[line]
        stop = ends[line] if line < len(ends) else len(part)
        level = LogLevel(sure[line]) if sure[line] else level_of(part[start:stop])
        if level is not None:
            yield begin + start, begin + stop, level


def _capitals(
    part: bytes, signs: NDArray[np.uint8], fours: list[NDArray[np.uint32]]
) -> tuple[_Places, NDArray[np.int64]]:
    """Where levels stand in capitals as words of their own, in order, and which."""
    padded = np.zeros(len(part) + _LONGEST + 2, dtype=np.uint8)
    padded[1 : len(part) + 1] = signs
    places, levels = [], []
    for word, level in WORDS.items():
        at = _places(fours, word[:4])
        for more in range(4, len(word)):
            at = at[padded[1 + at + more] == word[more]]
        at = at[~_IS_WORD[padded[at]] & ~_IS_WORD[padded[1 + at + len(word)]]]
        places.append(at)
        levels.append(np.full(at.size, int(level), dtype=np.int64))
    found = np.concatenate(places)
    order = np.argsort(found, kind="stable")
    return found[order], np.concatenate(levels)[order]


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
    return np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.intp)
