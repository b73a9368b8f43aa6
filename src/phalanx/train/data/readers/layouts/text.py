"""The offsets of characters in a UTF-8 file.

Random access by character needs to know where the 1024th, 2048th, … character starts: those byte
offsets are the file's marks. The alphabet is every character that occurs.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from phalanx.train.data.readers.layouts.columns import Array, Int64s

MARK_EVERY = 1024


@dataclass(frozen=True)
class TextLayout:
    """The marks of a text file. `num_characters` is -1, without marks, for a file that is not UTF-8."""

    num_characters: int
    marks: Int64s
    alphabet: Array


NOT_TEXT = TextLayout(-1, np.zeros(0, np.int64), np.zeros(0, np.int32))


def scan_text(chunks: Iterable[bytes]) -> TextLayout:
    """Scan a file once, in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    alphabet: set[int] = set()
    marks: list[Int64s] = []
    at = num_characters = 0
    try:
        for chunk in chunks:
            codes = np.frombuffer(decoder.decode(chunk).encode("utf-32-le"), "<u4")
            alphabet.update(np.unique(codes).tolist())
            starts = np.flatnonzero((np.frombuffer(chunk, np.uint8) & 0xC0) != 0x80)
            marks.append(at + starts[-num_characters % MARK_EVERY :: MARK_EVERY].astype(np.int64))
            num_characters += len(starts)
            at += len(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return NOT_TEXT
    found = np.concatenate([np.zeros(0, np.int64), *marks])
    return TextLayout(num_characters, found, np.array(sorted(alphabet), np.int32))
