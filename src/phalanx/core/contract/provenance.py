"""What a node reports about its software and inputs, and how two such reports are compared.

`InstalledSoftware` is what the interpreter of the ranks sees when an attempt starts on a node.
`InputFingerprint` is one named input of the spec's section `data`, as it was staged there. Both are values
with a canonical text, so that a digest stands for them; `differences` names what is not the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

MAX_PACKAGES = 5000
"""Distributions of one interpreter that are reported."""
_FEW = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledSoftware:
    """The Python interpreter, its distributions and the versions below them; empty: not there."""

    python: str = ""  # version
    implementation: str = ""  # such as CPython
    platform: str = ""  # system, kernel, machine and C library
    torch: str = ""  # version
    cuda: str = ""  # that torch was built for
    hip: str = ""  # that torch was built for
    driver: str = ""  # of the accelerators
    image: str = ""  # digest of the container image, where the executor knows it
    #: version by normalized name; of editable and VCS installs with their source
    packages: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The canonical text: JSON without blanks, with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical text."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    @classmethod
    def parse(cls, text: str) -> InstalledSoftware:
        """From the canonical text. Raises ValueError, TypeError."""
        return cls(**json.loads(text))

    def facts(self) -> dict[str, str]:
        """Every version by its name; packages under `packages.NAME`."""
        body = asdict(self)
        packages = body.pop("packages")
        found = {name: value for name, value in body.items() if value}
        return found | {f"packages.{name}": one for name, one in packages.items()}


@dataclass(frozen=True, slots=True)
class InputFingerprint:
    """One input as it was staged: its place, its size, and what changes when its files do."""

    name: str
    place: str  # path or URL
    num_files: int
    size_bytes: int
    #: `listing:` and a digest of names, sizes and versions, or `KIND:` and one of the contents' digests
    fingerprint: str

    def facts(self) -> dict[str, str]:
        """What two reports of the input are compared by; its place is not."""
        size = f"{self.num_files} files, {self.size_bytes} bytes, {self.fingerprint}"
        return {f"data.{self.name}": size}


@dataclass(frozen=True, slots=True)
class FactChange:
    """A name with two values; None: there is no value."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """As in a message: `packages.numpy 2.1.0 → 2.2.0`."""
        return f"{self.name} {self.before or 'absent'} → {self.after or 'absent'}"


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[FactChange]:
    """The names with different values, sorted."""
    names = sorted(before.keys() | after.keys())
    return [
        FactChange(name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def in_words(changes: Sequence[FactChange]) -> str:
    """The first changes as one text, and the number of the rest."""
    more = f" and {len(changes) - _FEW} more" if len(changes) > _FEW else ""
    return ", ".join(str(one) for one in changes[:_FEW]) + more


def expected_facts(software: InstalledSoftware) -> dict[str, str]:
    """The versions that a clone has to find again: not those of the machine below them."""
    return {
        name: value
        for name, value in software.facts().items()
        if name not in ("platform", "driver", "image")
    }


def input_facts(inputs: Sequence[InputFingerprint]) -> dict[str, str]:
    """The facts of several inputs."""
    return {name: value for one in inputs for name, value in one.facts().items()}


def flat(body: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """Every plain value of nested objects by its dotted path, as text; empty ones are left out."""
    for key, value in body.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        elif value is not None and value != "" and value != []:
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            yield f"{above}{key}", text
