"""Durations, sizes and times as people write them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

_DURATION_S = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
_SIZE_BYTES: dict[str, int] = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", 1)
    for suffix, base in (("", 1024), ("B", 1000), ("IB", 1024), ("I", 1024))
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
MAX_DURATION_S = 100 * 365 * 86400.0
MAX_SIZE_BYTES = 2**63 - 1
# Longer texts are neither a duration nor a size.
_MAX_TEXT = 64


def parse_duration(text: str | int | float) -> float:
    """Seconds from `90`, `90s`, `1.5h` or `1h30m`.

    Raises ValueError for anything else: for negative numbers, and for more than 100 years.
    """
    if isinstance(text, bool):
        raise ValueError("not a duration")
    if isinstance(text, int | float):
        if text < 0:
            raise ValueError("a duration cannot be negative")
        return _bounded(text)
    if len(text) > _MAX_TEXT:
        raise ValueError(f"a duration has at most {_MAX_TEXT} characters; write for example 1h30m")
    return _bounded(_duration_s(text))


def _bounded(seconds: float) -> float:
    # Not the reverse comparison: it would accept NaN.
    if not seconds <= MAX_DURATION_S:
        raise ValueError("a duration is at most 100 years")
    return float(seconds)


@functools.lru_cache(maxsize=1024)
def _duration_s(text: str) -> float:
    """Every spec has the same thirty defaults."""
    rest, total, seen = text.strip(), 0.0, False
    while rest:
        match = _PART.match(rest)
        if match is None:
            raise ValueError(f"{text!r} is not a duration; write for example 90s, 10m or 1h30m")
        number, unit = match.groups()
        if unit and unit.lower() not in _DURATION_S:
            raise ValueError(f"unknown unit {unit!r} in {text!r}; use s, m, h, d or w")
        total += float(number) * _DURATION_S[unit.lower() or "s"]
        rest, seen = rest[match.end() :], True
    if not seen:
        raise ValueError("an empty duration; write for example 90s, 10m or 1h30m")
    return total


def parse_size(text: str | int) -> int:
    """Bytes from `4096`, `80GB` (10⁹) or `64GiB`, `64Gi`, `64G` (2³⁰).

    Raises ValueError for anything else, and for 8 EiB or more.
    """
    if isinstance(text, bool):
        raise ValueError("not a size")
    if isinstance(text, str):
        match = _PART.fullmatch(text.strip()) if len(text) <= _MAX_TEXT else None
        if match is None or match[2].upper() not in _SIZE_BYTES:
            said = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
            raise ValueError(f"{said!r} is not a size; write for example 512MB, 80GB or 64GiB")
        # The product is less than 10^80: too small to overflow.
        number = int(match[1]) if match[1].isdigit() else float(match[1])
        text = round(number * _SIZE_BYTES[match[2].upper()])
    if text < 0:
        raise ValueError("a size cannot be negative")
    if text > MAX_SIZE_BYTES:
        raise ValueError("a size is less than 8 EiB")
    return text


_FACTORS: Mapping[str, Decimal] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** (n + 1) for n, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Decimal(1024) ** (n + 1) for n, unit in enumerate("KMGTPE")},
}


def parse_quantity(text: Any) -> Decimal:
    """The amount that a Kubernetes quantity such as `500m`, `8Gi` or `1e3` is. Raises ValueError."""
    number, unit = str(text).strip(), ""
    for length in (2, 1):
        if number[-length:] in _FACTORS and not number[-length:].isdigit():
            number, unit = number[:-length], number[-length:]
            break
    try:
        return Decimal(number) * _FACTORS[unit]
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no quantity") from error


def format_duration(seconds: float) -> str:
    """`0.35s`, `42s`, `3m05s`, `2h03m`, `4d02h`: the two units that matter."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 10:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def format_size(num_bytes: float) -> str:
    """`512 B`, `1.4 MB`, `80.0 GB`: decimal units."""
    value, unit = float(num_bytes), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def to_rfc3339(at_us: int) -> str:
    """Integer microseconds UTC as `2026-11-21T04:05:06.123456Z`."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
