"""Values of a job spec as people write them: durations, sizes, ranges, intervals, commands.

Each type reads several spellings and writes one, so that a dumped spec can be read again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
)
from pydantic import WithJsonSchema as Shown

from phalanx.core.experiments.parameters import MAX_FILES
from phalanx.core.frameworks.adapter import REGISTRY
from phalanx.kit.units import MAX_DURATION_S, MAX_SIZE_BYTES, parse_duration, parse_size
from phalanx.schemas.frameworks import framework
from phalanx.schemas.frameworks import names as known_frameworks

_RANGE = re.compile(r"(?P<low>[^.+]+|\d+\.\d+\s*\w*)(?:(?P<open>\+|\.\.)|\.\.(?P<high>[^.+]+))?")
# Longer texts are no number, range or interval, and the expressions above are not fast on long texts.
_MAX_SHORT_TEXT = 100
_UNITS_S = (("w", 604800), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_SIZES = tuple(
    size
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K"))
    for size in ((f"{letter}iB", 1024**power), (f"{letter}B", 1000**power))
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_VARIABLE = 200
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MAX_ARRAY = 1000
MAX_NODES = 20_000
"""The most nodes of a gang and of a pool file."""
MAX_SLOTS_PER_NODE = 4096
"""The most slots of one node: GPUs, or worker places of a node without GPUs."""
MAX_WHOLE = 10**12
"""The greatest whole number of a spec where a field has no smaller limit."""
MAX_ENTRIES = 1000
"""The most entries of a list or mapping of a spec where a field has no other limit."""
# The kernel's limit on one argument and one variable of a process.
_MAX_ARGUMENT_BYTES = 131_071
_MAX_TEXT = 4096


@functools.lru_cache(maxsize=1024)
def write_duration(seconds: float) -> str:
    """`43200.0` as `12h`, `90.0` as `1m30s`: exact, unlike `format_duration`."""
    if seconds != int(seconds) or seconds == 0:
        return f"{seconds:g}s"
    left, parts = int(seconds), []
    for unit, size in _UNITS_S:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def write_size(num_bytes: int) -> str | int:
    """`80_000_000_000` as `80GB`; a plain number where no unit divides it."""
    for unit, size in _SIZES:
        if num_bytes and num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return num_bytes


@dataclass(frozen=True, slots=True)
class Range:
    """`low` to `high` inclusive; `high` None: no upper bound."""

    low: int
    high: int | None

    @property
    def is_number(self) -> bool:
        """Whether it names one value only."""
        return self.low == self.high


def _read_range(value: Any, read: Callable[[Any], int], least: int, example: str) -> Range:
    if isinstance(value, Range):
        return value
    if isinstance(value, str):
        text = value.strip()
        match = _RANGE.fullmatch(text) if len(text) <= _MAX_SHORT_TEXT else None
        if match is None:
            raise ValueError(f"write {example}")
        low = read(match["low"].strip())
        high = None if match["open"] else read((match["high"] or match["low"]).strip())
    else:
        low = high = read(value)
    if low < least:
        raise ValueError(f"must be at least {least}")
    if high is not None and high < low:
        raise ValueError("the upper end of the range is below its lower end")
    return Range(low, high)


def _whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,12}", value):
        raise ValueError("write a whole number such as 2, or a range such as 2..4 or 2+")
    return int(value)


def _size(value: Any) -> int:
    if not isinstance(value, str | int):
        raise ValueError("write a size such as 80GB")
    return parse_size(value)


def _count_range(value: Any) -> Range:
    found = _read_range(value, _whole, 1, "a number such as 2, or a range such as 2..4 or 2+")
    if max(found.low, found.high or 0) > MAX_NODES:
        raise ValueError(f"must be at most {MAX_NODES}")
    return found


def _size_range(value: Any) -> Range:
    return _read_range(value, _size, 0, "a size such as 80GB, or at least one as in 80GB+")


def _write_count(value: Range) -> int | str:
    if value.is_number:
        return value.low
    return f"{value.low}.." if value.high is None else f"{value.low}..{value.high}"


def _write_size_range(value: Range) -> int | str:
    low = write_size(value.low)
    if value.is_number:
        return low
    return f"{low}.." if value.high is None else f"{low}..{write_size(value.high)}"


def _duration(value: Any) -> float:
    if not isinstance(value, str | int | float):
        raise ValueError("write a duration such as 90s, 10m or 1h30m")
    return parse_duration(value)


def _interval(value: Any) -> str:
    """`every`: a duration, a number of steps or epochs, or `auto`; in one spelling."""
    if isinstance(value, str):
        text = " ".join(value[: _MAX_SHORT_TEXT + 1].split())
        if text == "auto":
            return text
        match = re.fullmatch(r"([0-9]{1,12}) ?(steps?|epochs?)", text)
        if match is not None:
            if int(match[1]) < 1:
                raise ValueError("must be at least 1")
            noun = match[2].rstrip("s")
            return f"{int(match[1])} {noun}" + ("" if int(match[1]) == 1 else "s")
    try:
        seconds = _duration(value)
    except ValueError:
        raise ValueError(
            "write a duration such as 10m, or `500 steps`, or `1 epoch`, or auto"
        ) from None
    if seconds <= 0:
        raise ValueError("must be longer than 0s")
    return write_duration(seconds)


def _command(value: Any) -> list[str] | str:
    words = [value] if isinstance(value, str) else value
    if isinstance(words, list | tuple) and words and all(isinstance(v, str) for v in words):
        if any("\0" in word for word in words):
            raise ValueError("a command cannot hold a NUL byte")
        if len(words) > MAX_ENTRIES or any(_is_too_long(word) for word in words):
            raise ValueError(f"a command has at most {MAX_ENTRIES} words of at most 128 KiB")
        if not isinstance(value, str):
            return list(words)
        if value.strip():
            return value
    raise ValueError(
        "write a command such as `python train.py`, or a list of words (quote numbers)"
    )


def _plain_text(value: Any) -> str:
    """Text, or a number as it was written; true and false have to be quoted."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("write text; put true, false and empty values in quotes")
    if isinstance(value, int) and abs(value) >= 10**18:
        raise ValueError("put a number of this size in quotes")
    text = value if isinstance(value, str) else str(value)
    if "\0" in text:
        raise ValueError("a value cannot hold a NUL byte")
    if _is_too_long(text):
        raise ValueError("a value has at most 128 KiB")
    return text


def _is_too_long(text: str) -> bool:
    """Whether the kernel would refuse a text as an argument or variable of a process."""
    return len(text.encode(errors="replace")) > _MAX_ARGUMENT_BYTES


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            "write 1 to 100 letters, digits, dots, dashes or underscores, a letter or digit first"
        )
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value) or len(value) > MAX_VARIABLE:
        raise ValueError(
            f"a variable name has up to {MAX_VARIABLE} letters, digits and underscores, no digit first"
        )
    return value


def _framework(name: str) -> str:
    return _one_of(list(known_frameworks()), name)


def _role_framework(name: str) -> str:
    return _one_of([one for one in known_frameworks() if framework(one).in_roles], name)


def _one_of(names: list[str], name: str) -> str:
    if name not in names:
        *most, last = map(repr, names)
        raise ValueError(f"must be {', '.join(most)} or {last}")
    return name


def one_or_more(value: Any) -> Any:
    """A text as a list of one."""
    return [value] if isinstance(value, str) else value


def _once(value: list[str]) -> list[str]:
    return sorted(set(value))


def _labels(value: Any) -> Any:
    """`j-12`, `12` or a list of them."""
    many = value if isinstance(value, list) else [value]
    return [
        f"j-{one}" if isinstance(one, int) and not isinstance(one, bool) else one for one in many
    ]


def _array(value: Any) -> list[int]:
    if isinstance(value, list) and all(type(v) is int and 0 <= v < 10**9 for v in value):
        if not 1 <= len(value) <= _MAX_ARRAY:
            raise ValueError(f"write 1 to {_MAX_ARRAY} indices")
        return sorted(set(value))
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("write indices such as 0-9 or 1,3,5")
    found: set[int] = set()
    count = 0
    for part in str(value).split(","):
        match = _SPAN.fullmatch(part.strip())
        if match is None:
            raise ValueError("write indices such as 0-9 or 1,3,5")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        count += 0 if step == 0 else (high - low) // step + 1
        if high < low or step == 0 or count > _MAX_ARRAY:
            raise ValueError(f"write ascending ranges of at most {_MAX_ARRAY} indices in all")
        found.update(range(low, high + 1, step))
    return sorted(found)


def _write_indices(indices: list[int]) -> str:
    """Indices as ranges: `0-4,7`."""
    spans: list[list[int]] = []
    for one in indices:
        if spans and one == spans[-1][1] + 1:
            spans[-1][1] = one
        else:
            spans.append([one, one])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _cron(value: str) -> str:
    if len(value) > _MAX_SHORT_TEXT or len(value.split()) != 5:
        raise ValueError("write five fields: minute hour day month weekday, such as `0 3 * * *`")
    return value


def _when(value: Any) -> Any:
    if value in ("auto", "never"):
        return value
    duration_s = _duration(value)
    if duration_s <= 0:
        raise ValueError("must be longer than 0s; write never for no limit")
    return write_duration(duration_s)


_ONE_SIZE = r"([0-9]{1,15}|[0-9]{1,6}(\.[0-9]{1,6})? ?([KMGT](iB?|B)?|B))"
_DURATION_PATTERN = r"^([0-9]{1,6}(\.[0-9]{1,6})? ?([mu]?s|sec|m|min|h|d|w)? ?){1,4}$"
_SIZE_PATTERN = f"^{_ONE_SIZE}$"
_COUNT_PATTERN = r"^[0-9]{1,5} ?(\+|\.\. ?([0-9]{1,5})?)?$"
_SIZE_RANGE_PATTERN = rf"^{_ONE_SIZE} ?(\+|\.\. ?{_ONE_SIZE}?)?$"
_INTERVAL_PATTERN = (
    r"^(auto|[0-9]{1,12} ?(steps?|epochs?)|([0-9]{1,6}(\.[0-9]{1,6})? ?(m?s|m|h|d)? ?){1,3})$"
)
_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
_VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,199}$"


def _number_or(pattern: str, number: str, *examples: object, most: float | None = None) -> Shown:
    """The JSON schema of a value that is a number or a text of this pattern."""
    limit = {} if most is None else {"maximum": most}
    return Shown(
        {
            "anyOf": [
                {"type": "string", "pattern": pattern},
                {"type": number, "minimum": 0, **limit},
            ],
            "examples": list(examples),
        }
    )


TEXT_OR_LIST = Shown(
    {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_ENTRIES},
        ]
    }
)
_NAME_SCHEMA = {"type": "string", "pattern": _NAME_PATTERN}
_NAMES = Shown(
    {"anyOf": [_NAME_SCHEMA, {"type": "array", "items": _NAME_SCHEMA, "maxItems": MAX_ENTRIES}]}
)
_TAG = r"^[A-Za-z0-9][\w./+-]{0,99}$"
_TAG_SCHEMA = {"type": "string", "pattern": _TAG}
Whether = Annotated[bool, Field(strict=True)]
NotEmpty = Annotated[str, Field(strict=True, min_length=1, max_length=_MAX_TEXT)]
Duration = Annotated[
    float,
    BeforeValidator(_duration),
    PlainSerializer(write_duration, return_type=str),
    _number_or(_DURATION_PATTERN, "number", "90s", "10m", "1h30m", most=MAX_DURATION_S),
]
Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(write_size),
    _number_or(_SIZE_PATTERN, "integer", "512MB", "64GiB", most=MAX_SIZE_BYTES),
]
CountRange = Annotated[
    Range,
    PlainValidator(_count_range),
    PlainSerializer(_write_count),
    _number_or(_COUNT_PATTERN, "integer", 2, "2..4", "4+", most=MAX_NODES),
]
SizeRange = Annotated[
    Range,
    PlainValidator(_size_range),
    PlainSerializer(_write_size_range),
    _number_or(_SIZE_RANGE_PATTERN, "integer", "80GB", "200GB..", most=MAX_SIZE_BYTES),
]
Interval = Annotated[
    str,
    PlainValidator(_interval),
    _number_or(
        _INTERVAL_PATTERN, "number", "10m", "500 steps", "1 epoch", "auto", most=MAX_DURATION_S
    ),
]
Command = Annotated[
    Any,
    PlainValidator(_command),
    TEXT_OR_LIST,
]
Text = Annotated[
    str,
    BeforeValidator(_plain_text),
    Shown({"type": ["string", "number"], "maxLength": _MAX_ARGUMENT_BYTES}),
]  # numbers are kept as they were written
Name = Annotated[str, Field(strict=True), AfterValidator(_name), Shown(_NAME_SCHEMA)]
Variable = Annotated[
    str,
    Field(strict=True),
    AfterValidator(_variable),
    Shown({"type": "string", "pattern": _VARIABLE_PATTERN}),
]
FrameworkName = Annotated[
    str,
    Field(strict=True),
    AfterValidator(_framework),
    Shown({"type": "string", "enum": list(REGISTRY)}),
]
RoleFrameworkName = Annotated[
    str,
    Field(strict=True),
    AfterValidator(_role_framework),
    Shown({"type": "string", "enum": [one.name for one in REGISTRY.values() if one.in_roles]}),
]
Names = Annotated[
    list[Name],
    BeforeValidator(one_or_more),
    Field(max_length=MAX_ENTRIES),
    _NAMES,
]
Tags = Annotated[
    list[Annotated[str, Field(strict=True, pattern=_TAG)]],
    BeforeValidator(one_or_more),
    AfterValidator(_once),
    Field(max_length=100),
    Shown({"anyOf": [_TAG_SCHEMA, {"type": "array", "items": _TAG_SCHEMA, "maxItems": 100}]}),
]
"""Words without order; one that is given twice counts once."""
Labels = Annotated[dict[Name, Text], Field(max_length=100)]
ConfigFiles = Annotated[
    list[Annotated[str, Field(strict=True, min_length=1, max_length=500)]],
    BeforeValidator(one_or_more),
    Field(max_length=MAX_FILES),
]
"""Names of files in YAML, JSON or TOML."""
Jobs = Annotated[
    list[Name],
    BeforeValidator(_labels),
    Field(max_length=MAX_ENTRIES),
    Shown(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer"]}}]}
    ),
]
Indices = Annotated[
    list[int],
    PlainValidator(_array),
    PlainSerializer(_write_indices, return_type=str),
    Shown(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^[0-9]{1,9}(-[0-9]{1,9}(:[0-9]{1,9})?)?(,.*)?$"},
                {"type": "array", "items": {"type": "integer", "minimum": 0}},
            ]
        }
    ),
]
Cron = Annotated[str, Field(strict=True), AfterValidator(_cron)]
StallAfter = Annotated[
    str,
    PlainValidator(_when),
    _number_or(
        r"^(auto|never|[0-9]{1,6}(s|m|h))$", "number", "auto", "5m", "never", most=MAX_DURATION_S
    ),
]
WholeFromZero = Annotated[int, Field(strict=True, ge=0, le=MAX_WHOLE)]
WholeFromOne = Annotated[int, Field(strict=True, ge=1, le=MAX_WHOLE)]
# Floats are read by the rules of `Section`: NaN and infinity are refused.
Positive = Annotated[float, Field(gt=0, le=1e15)]
NotNegative = Annotated[float, Field(ge=0, le=1e15)]


def optional(description: str) -> Any:
    """A key that a spec may leave out, which then is None."""
    return Field(default=None, description=description)


class Section(BaseModel):
    """A mapping of the spec: unknown keys are errors, values never change."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        serialize_by_alias=True,
        use_enum_values=True,
        allow_inf_nan=False,
    )
