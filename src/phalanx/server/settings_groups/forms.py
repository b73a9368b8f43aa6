"""How values of settings are written: sizes, durations and shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from phalanx.errors import PlatformError
from phalanx.kit.units import parse_duration, parse_size


class SettingsGroup(BaseModel):
    """One group of settings; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def file_or_value(given: str, refuse: Callable[[str], PlatformError]) -> Callable[[], str]:
    """A value that is given itself, or by `file:PATH`, which is read again at each use.

    `refuse` makes the error for a file that cannot be read, from its path and the reason.
    """
    if not given.startswith("file:"):
        return lambda: given
    path = Path(given.removeprefix("file://").removeprefix("file:"))

    def read() -> str:
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else "it is not text"
            raise refuse(f"{path} cannot be read: {said}") from None

    return read


def read_size(value: object) -> object:
    """A size in bytes, or one such as `512MiB`."""
    return parse_size(value) if isinstance(value, str) else value


Size = Annotated[int | None, BeforeValidator(read_size), Field(ge=1 << 20)]


def read_duration(value: object) -> object:
    """A duration in seconds, or one such as `30d`."""
    return parse_duration(value) if isinstance(value, str) else value


# A supervisor may send unacknowledged reports again: younger data are not deleted.
Age = Annotated[float | None, BeforeValidator(read_duration), Field(ge=3600)]


def read_share(value: object) -> object:
    """A share such as `99%` or 0.99."""
    if not isinstance(value, str):
        return value
    number = value.strip().removesuffix("%")
    try:
        return float(number) / (100.0 if value.strip().endswith("%") else 1.0)
    except ValueError:
        raise ValueError("is not a share such as 99%") from None


Share = Annotated[float | None, BeforeValidator(read_share), Field(gt=0, lt=1, allow_inf_nan=False)]
TimeLimit = Annotated[float | None, BeforeValidator(read_duration), Field(gt=0, le=30 * 86_400)]
