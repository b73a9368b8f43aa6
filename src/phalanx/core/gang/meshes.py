"""The layout of the ranks of a gang: pipeline stages × replicas × shards × tensor parallel ranks.

Ranks that are neighbours in the innermost dimension, `tp`, have consecutive numbers, because they
communicate most. Ranks that differ only in their `pp` and `tp` coordinates work on the same samples:
together they are one *place* of the data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.kit.text import nearest

DIMENSIONS = ("pp", "dp", "fsdp", "tp")
NAMES = ("ddp", "fsdp", "tp", "pp", "auto")
AUTO = "auto"
_ALIASES = {"ddp": "dp"}
_PAIR = re.compile(r"\s*([a-z]+)\s*[=:]\s*(\d+)\s*")


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the dimensions; their product is the number of ranks."""

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    pp: int = 1

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.pp * self.stage_size

    @property
    def stage_size(self) -> int:
        """How many ranks hold parts of the same layers: all of them without pipeline stages."""
        return self.dp * self.fsdp * self.tp

    @property
    def num_places(self) -> int:
        """How many ranks or groups of ranks get samples of their own."""
        return self.dp * self.fsdp

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is in each dimension."""
        found = {}
        for name in reversed(DIMENSIONS):
            size = getattr(self, name)
            found[name] = rank % size
            rank //= size
        return found

    def place(self, rank: int) -> tuple[int, int]:
        """(place of this rank's samples, number of places)."""
        at = self.coordinates(rank)
        return at["dp"] * self.fsdp + at["fsdp"], self.num_places

    def twin(self, rank: int) -> int:
        """The first of the ranks that draw the same random numbers: same samples, same layers."""
        return rank - self.coordinates(rank)["tp"]

    def speaker(self, rank: int) -> int:
        """The first of the ranks that share this rank's samples; it answers for their place."""
        return self.twin(rank) % self.stage_size

    def speaks(self, rank: int) -> bool:
        """Whether this rank answers for its place."""
        return self.speaker(rank) == rank

    def __str__(self) -> str:
        parts = [f"{name}={getattr(self, name)}" for name in DIMENSIONS if getattr(self, name) > 1]
        return ",".join(parts) or "single"


def parse_sizes(value: Any) -> str | dict[str, int]:
    """A strategy's name, or the sizes of its dimensions, also from text such as `fsdp=2,tp=2`.

    Raises ValueError.
    """
    if isinstance(value, str) and value in NAMES:
        return value
    if isinstance(value, str):
        pairs = [_PAIR.fullmatch(part) for part in value.split(",")]
        if not all(pairs):
            near = nearest(value, NAMES)
            hint = f"; did you mean {near}?" if near else ""
            raise ValueError(
                f"must be {', '.join(NAMES)} or sizes such as fsdp=2,tp=2, not {value!r}{hint}"
            )
        value = {pair[1]: int(pair[2]) for pair in pairs if pair}
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"must be {', '.join(NAMES)} or a mapping of sizes, not {value!r}")
    sizes: dict[str, int] = {}
    for key, size in value.items():
        name = _ALIASES.get(key, key)
        if name not in DIMENSIONS:
            near = nearest(str(key), DIMENSIONS)
            hint = f"; did you mean {near}?" if near else ""
            raise ValueError(f"{key} is not a dimension; known: {', '.join(DIMENSIONS)}{hint}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{key} must be a whole number, at least 1, not {size!r}")
        sizes[name] = size
    return sizes


def layout(sizes: str | Mapping[str, int], world_size: int) -> Layout:
    """Return the layout of `world_size` ranks.

    Ranks that the sizes leave over become replicas where `dp` is not given. Raises ValueError where they
    cannot.
    """
    if isinstance(sizes, str):
        # What `auto` becomes is known once there is a model; until then every rank is a place.
        name = "dp" if sizes == AUTO else _ALIASES.get(sizes, sizes)
        return Layout(**{name: world_size})
    product = math.prod(sizes.values())
    given = ",".join(f"{name}={size}" for name, size in sizes.items())
    if world_size % product:
        raise ValueError(
            f"{given} needs {_multiple(product, sizes)} {product} ranks, there are {world_size}"
        )
    left = world_size // product
    if left > 1 and "dp" in sizes:
        raise ValueError(
            f"{given} takes {product} ranks, there are {world_size}; leave dp out to replicate"
        )
    return Layout(**{"dp": left, **sizes})


def _multiple(product: int, sizes: Mapping[str, int]) -> str:
    return "exactly" if "dp" in sizes else "a multiple of"


def problem(sizes: str | Mapping[str, int], world_sizes: Iterable[int]) -> str | None:
    """Why a gang that may have any of these world sizes cannot be laid out so; None where it can.

    An elastic gang grows and shrinks by replicas, so its sizes may not name `dp`.
    """
    worlds = sorted(set(world_sizes))
    for world_size in worlds:
        try:
            layout(sizes, world_size)
        except ValueError as error:
            if len(worlds) == 1:
                return str(error)
            return f"{error} (the gang may have {_listed(worlds)})"
    return None


def _listed(worlds: Sequence[int]) -> str:
    if len(worlds) > 4:
        return f"{worlds[0]}, {worlds[1]}, … {worlds[-1]}"
    return ", ".join(str(one) for one in worlds[:-1]) + f" or {worlds[-1]}"
