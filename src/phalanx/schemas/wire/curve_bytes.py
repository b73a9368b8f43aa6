"""Curves as bytes: the answer of `GET /api/v1/metrics` to clients that accept `SERIES_TYPE`.

Four bytes say what it is and its version, and four the length of the head (little endian). The head is
JSON, padded with spaces so that what follows begins at a multiple of eight: a list with one object for each
curve, the fields of `CurveView` without `steps` and `values`, with the number of `points`. Then each curve
has its steps and its values, all as IEEE 754 numbers of eight bytes, little endian. In a browser both are
`Float64Array` views of the answer. Steps are rounded above 2**53; values that are not finite are sent as
they are.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from phalanx.schemas.api.telemetry import CurvesView, CurveView

SERIES_TYPE = "application/vnd.phalanx.series"
_MAGIC = b"PHC\x01"
_START = 8
_WIDTH = 8


def encode_curves(heads: Sequence[dict[str, Any]], columns: Sequence[bytes]) -> bytes:
    """The bytes of curves; `columns` has the steps and the values of each, one after the other."""
    head = json.dumps(list(heads), separators=(",", ":")).encode()
    head += b" " * (-len(head) % _WIDTH)
    return b"".join((_MAGIC, len(head).to_bytes(4, "little"), head, *columns))


def decode_curves(data: bytes) -> CurvesView:
    """Read the bytes of curves. Raises ValueError for what is not an answer of this version."""
    if data[:4] != _MAGIC:
        raise ValueError("not curves of a version that is known")
    at = _START + int.from_bytes(data[4:_START], "little")
    if at > len(data):
        raise ValueError("curves that are cut off")
    found = []
    for head in json.loads(data[_START:at]):
        points = head.pop("points")
        if type(points) is not int or not 0 <= points <= (len(data) - at) // (2 * _WIDTH):
            raise ValueError("curves that are cut off")
        middle, end = at + points * _WIDTH, at + 2 * points * _WIDTH
        steps = [int(step) for step in _numbers(data[at:middle])]
        values = [one if math.isfinite(one) else None for one in _numbers(data[middle:end])]
        found.append(CurveView(**head, steps=steps, values=values))
        at = end
    if at != len(data):
        raise ValueError("bytes behind the last curve")
    return CurvesView(series=found)


def _numbers(data: bytes) -> array[float]:
    found = array("d")
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found
