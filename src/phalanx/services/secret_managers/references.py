"""Secret managers: programs outside of the control plane that hold values, and references to such values.

The database has a reference, `MANAGER:PATH#KEY`, and never the value. A project reaches the paths below one
folder of its own in each manager; references of the whole platform reach every path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx.errors import SecretManagerUnavailable, SecretRefused, UserError

MAX_BYTES = 64 << 10
"""The longest value of a secret."""
PAUSE_S = 15.0
"""After a manager has not answered, it is not asked again for this long."""
_FORM = re.compile(
    r"(?P<manager>[a-z][a-z0-9-]{0,31}):(?P<path>[^#\s]{1,512})#(?P<key>[A-Za-z0-9._-]{1,253})"
)
_SEGMENT = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9._@-]*")
_WRITE = "write MANAGER:PATH#KEY, such as vault:phalanx/vision/hub#token"


@dataclass(frozen=True, slots=True)
class SecretReference:
    """Where a manager has a value."""

    manager: str
    path: str
    key: str

    @classmethod
    def parse(cls, text: str) -> SecretReference:
        """Read `MANAGER:PATH#KEY`. Raises UserError."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise UserError(f"{text[:200]!r} is no reference to a secret", _WRITE)
        segments = found["path"].split("/")
        wrong = next((one for one in segments if not _SEGMENT.fullmatch(one)), None)
        if wrong is not None or found["key"].startswith("."):
            part = found["key"] if wrong is None else wrong
            said = "letters, digits, _, @, - and ., without a . at the beginning"
            raise UserError(f"{text[:200]!r}: the part {part[:60]!r} may have {said}", _WRITE)
        return cls(found["manager"], found["path"], found["key"])

    def __str__(self) -> str:
        return f"{self.manager}:{self.path}#{self.key}"


class SecretSource(Protocol):
    """One secret manager. Threads share it."""

    @property
    def name(self) -> str:
        """The first word of references."""
        ...

    @property
    def project_path(self) -> str:
        """The folder of a project, with `{project}` in the place of its name."""
        ...

    def read(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        """The values of some keys at a path, all of one version.

        Raises SecretManagerUnavailable where a later call may succeed, and SecretRefused where it cannot
        before something is changed: the path, a key or a permission is missing. No message has a value.
        """
        ...


class SecretSources:
    """The configured managers. One that has not answered is left alone for `PAUSE_S`."""

    def __init__(
        self, managers: Sequence[SecretSource] = (), monotonic: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._managers = {one.name: one for one in managers}
        self._monotonic = monotonic
        self._away: dict[str, tuple[float, SecretManagerUnavailable]] = {}

    def check(self, project: str, reference: SecretReference) -> None:
        """Raise SecretRefused where the manager is unknown, or the path is not that of the project.

        An empty project is the whole platform.
        """
        manager = self._managers.get(reference.manager)
        if manager is None:
            known = ", ".join(sorted(self._managers)) or "none"
            raise SecretRefused(
                f"there is no secret manager {reference.manager}; configured: {known}",
                "docs/how-to/secret-managers.md names the settings",
            )
        folder = manager.project_path.replace("{project}", project)
        if project and not reference.path.startswith(f"{folder}/"):
            raise SecretRefused(
                f"{reference}: secrets of project {project} are below {folder}/ in {manager.name}",
                "an administrator can set a reference of the whole platform to any path",
            )

    def read(self, project: str, references: Mapping[str, SecretReference]) -> dict[str, str]:
        """Values by name; keys of one path are read together.

        Raises SecretManagerUnavailable, SecretRefused.
        """
        keys: dict[tuple[str, str], set[str]] = {}
        for one in references.values():
            self.check(project, one)
            keys.setdefault((one.manager, one.path), set()).add(one.key)
        read = {place: self._ask(*place, wanted) for place, wanted in keys.items()}
        return {
            name: _usable(one, read[one.manager, one.path].get(one.key))
            for name, one in references.items()
        }

    def _ask(self, name: str, path: str, keys: Collection[str]) -> Mapping[str, str]:
        until, error = self._away.get(name, (0.0, None))
        if error is not None and self._monotonic() < until:
            raise SecretManagerUnavailable(error.message, error.hint)
        try:
            found = self._managers[name].read(path, keys)
        except SecretManagerUnavailable as away:
            self._away[name] = (self._monotonic() + PAUSE_S, away)
            raise
        self._away.pop(name, None)
        return found


def _usable(reference: SecretReference, value: str | None) -> str:
    if value is None:
        raise SecretRefused(f"{reference}: there is no such key")
    if not value or "\0" in value:
        raise SecretRefused(f"{reference}: the value is empty, or holds a zero byte")
    if len(value.encode()) > MAX_BYTES:
        raise SecretRefused(f"{reference}: the value is longer than {MAX_BYTES} bytes")
    return value
