"""Metrics from a script's output: patterns such as `step {step}: loss {loss}`, or lines of JSON.

For scripts that do not use the library. A pattern is literal text with names in braces, each for a
number; runs of blanks match any run of blanks, and the pattern may lie anywhere in the line.
A number and a run of blanks are matched whole or not at all, and have a limit: matching takes time in
proportion to the length of the line, whatever is printed.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

JSON = "json"
MOST_CHARACTERS = 4096
_NAME = re.compile(r"\{([^{}]*)\}")
_METRIC = re.compile(r"[A-Za-z_][\w./-]*")
MAX_PATTERN = 1000
MAX_METRICS = 50
_EXPONENT = r"(?:[eE][-+]?[0-9]{1,4}+)?+"
_NUMBER = (
    r"((?>[-+]?+(?:[0-9]{1,64}+(?:\.[0-9]{1,64}+)?+"
    + _EXPONENT
    + r"|\.[0-9]{1,64}+"
    + _EXPONENT
    + r"|nan|inf|NaN|Infinity)))"
)
_BLANKS = r"\s{1,256}+"


@dataclass(frozen=True, slots=True)
class LinePattern:
    """One pattern: an expression with a group for each of `names`, in order; None reads JSON."""

    names: tuple[str, ...]
    expression: re.Pattern[str] | None

    @classmethod
    def parse(cls, text: str) -> LinePattern:
        """Parse a pattern of a spec. Raises ValueError."""
        if text.strip() == JSON:
            return cls((), None)
        if len(text) > MAX_PATTERN:
            raise ValueError(f"has more than {MAX_PATTERN} characters")
        parts = _NAME.split(text)
        names = tuple(parts[1::2])
        if len(names) > MAX_METRICS:
            raise ValueError(f"names more than {MAX_METRICS} metrics")
        if not names:
            raise ValueError("names no metric; write {name} in place of its number")
        for name in names:
            if not _METRIC.fullmatch(name):
                raise ValueError(f"{{{name}}} is not a valid name of a metric")
        if len(set(names)) < len(names):
            raise ValueError("names a metric twice")
        if any(not between for between in parts[2:-1:2]):
            raise ValueError("has two numbers without text between them")
        if "{" in "".join(parts[::2]) or "}" in "".join(parts[::2]):
            raise ValueError("has an unmatched brace")
        if any(between[0] in "0123456789" for between in parts[2:-1:2]):
            raise ValueError("has a digit right after a number")
        texts = [_BLANKS.join(map(re.escape, re.split(r"\s+", one))) for one in parts[::2]]
        return cls(names, re.compile(_NUMBER.join(texts)))

    def read(self, line: str) -> dict[str, float]:
        """The numbers in a line, by name; empty where it does not match."""
        if self.expression is None:
            return _json(line)
        found = self.expression.search(line)
        if found is None:
            return {}
        return dict(zip(self.names, map(float, found.groups()), strict=True))


def _json(line: str) -> dict[str, float]:
    line = line.strip()
    if not line.startswith("{"):
        return {}
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, float] = {}
    for name, value in body.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):  # a whole number beyond what a float can be
                found[name] = float(value)
    return found


@dataclass(frozen=True, slots=True)
class ParsedLine:
    """The metrics of one line.

    `stepped`: the line is the first of its step. `counted`: the step is a count of lines. `has_epoch`:
    this line or an earlier one has named an epoch.
    """

    step: int
    epoch: int
    values: Mapping[str, float | str]
    stepped: bool
    counted: bool = False
    has_epoch: bool = False


def names_metric(patterns: Sequence[LinePattern], name: str) -> bool:
    """Whether the patterns may find a number of this name: lines of JSON may hold any."""
    return any(one.expression is None or name in one.names for one in patterns)


class LineReader:
    """What the lines of one rank say, in order: each is given the step that was named last.

    The step is `{step}`; where no line has named one it is `{epoch}`; and where no pattern speaks of
    either, the number of lines so far that said anything, counted from `first`: a script that resumes does
    not print the lines of earlier generations again.
    """

    def __init__(self, patterns: Sequence[LinePattern], first: int = 0) -> None:
        self._patterns = patterns
        self._counts = not any({"step", "epoch"} & set(one.names) for one in patterns)
        self._step = self._named = -1
        self._epoch = 0
        self._has_epoch = False
        self._num_lines = first

    def read(self, line: str) -> ParsedLine | None:
        """Parse one line; None when it has no metrics."""
        values: dict[str, float] = {}
        for pattern in self._patterns:
            values |= pattern.read(line[:MOST_CHARACTERS])
        if not values:
            return None
        self._num_lines += 1
        step, epoch = _whole(values.pop("step", None)), _whole(values.pop("epoch", None))
        if epoch is not None:
            self._epoch, self._has_epoch = epoch, True
        counted = False
        if step is not None:
            self._named = step
        elif epoch is not None and self._named < 0:
            step = epoch
        elif counted := self._counts and self._step in (-1, self._num_lines - 1):
            step = self._num_lines
        stepped = step is not None and step > self._step
        if step is not None:
            self._step = step
        shown = {name: one if math.isfinite(one) else str(one) for name, one in values.items()}
        at = max(0, self._step)
        return ParsedLine(at, self._epoch, shown, stepped, counted, self._has_epoch)


def _whole(value: float | None) -> int | None:
    """A step's number; None for what cannot be one."""
    if value is None or not math.isfinite(value) or not 0 <= value < 2**53:
        return None
    return int(value)
