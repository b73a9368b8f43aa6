"""The index of a pack: which groups of four bytes its text has, as bits of a hash.

A text of four bytes or more can only occur where all its groups are set. Letters of ASCII count the same in
both cases. The bits never miss a text; that they name a pack without it is rare.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GRAM = 4
_BITS = 17
BITMAP_BYTES = (1 << _BITS) // 8
_FACTOR = np.uint32(2654435761)
_SHIFT = np.uint32(32 - _BITS)
# Signs of a regular expression; and those after which the sign before them may be absent.
_SPECIAL = frozenset("\\^$.|?*+()[]{}")
_OPTIONAL = frozenset("?*{")


def bitmap(text: bytes) -> bytes:
    """The bits of all groups in a text."""
    found = np.zeros(1 << _BITS, dtype=np.bool_)
    lowered = text.lower()
    for shift in range(GRAM):
        # Numbers of the type of an index: to convert them here is faster than inside.
        found[_hashes(lowered, shift).astype(np.intp)] = True
    return np.packbits(found, bitorder="little").tobytes()


def places(text: bytes) -> list[int]:
    """The bits that a bitmap has where this text occurs; none for a short text."""
    lowered = text.lower()
    groups = {lowered[at : at + GRAM] for at in range(len(lowered) - GRAM + 1)}
    return sorted({int(_hashes(one, 0)[0]) for one in groups})


def may_contain(bits: bytes, wanted: Sequence[int]) -> bool:
    """Whether a bitmap has all of some bits."""
    return all(bits[one >> 3] >> (one & 7) & 1 for one in wanted)


def _hashes(lowered: bytes, shift: int) -> NDArray[np.uint32]:
    whole = (len(lowered) - shift) // GRAM
    groups = np.frombuffer(
        lowered, dtype="<u4", count=max(whole, 0), offset=shift if whole > 0 else 0
    )
    hashes = groups * _FACTOR
    hashes >>= _SHIFT
    return hashes


def required_text(pattern: str) -> str:
    """A text that every match of a regular expression has in it; empty where none is known.

    Only of plain expressions, without alternatives, groups or flags: the longest run of ordinary signs.
    """
    if any(sign in pattern for sign in "|("):
        return ""
    runs, run, at = [], "", 0
    while at < len(pattern):
        sign = pattern[at]
        after = pattern[at + 1] if at + 1 < len(pattern) else ""
        if sign in _SPECIAL:
            runs.append(run)
            run = ""
            at = _behind(pattern, at)
            continue
        if after in _OPTIONAL and after:
            runs.append(run)
            run = ""
        else:
            run += sign
        at += 1
    return max([*runs, run], key=len)


def _behind(pattern: str, at: int) -> int:
    """The place behind an escape, a set or a repetition; of one that is not understood, the end."""
    sign = pattern[at]
    if sign == "\\":
        # \Q, \x{…} and \p{…} have text behind them that is no text of a match.
        simple = pattern[at + 1 : at + 2] in set("dDwWsSbB.[](){}^$*+?\\/-\"'")
        return at + 2 if simple else len(pattern)
    if sign == "[":
        first = at + 2 if pattern[at + 1 : at + 2] == "^" else at + 1
        closed = pattern.find("]", first + 1)
        inside = pattern[at + 1 : closed]
        return len(pattern) if closed < 0 or "\\" in inside or "[" in inside else closed + 1
    if sign == "{":
        closed = pattern.find("}", at)
        return len(pattern) if closed < 0 else closed + 1
    return at + 1
