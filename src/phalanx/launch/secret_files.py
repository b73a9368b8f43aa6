"""Secrets by name: files of mode 0600 in a folder, read when a supervisor starts and nowhere else.

No value ever stands in a spec, an assignment, the database, a report or a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from phalanx.errors import NotFound, PlatformError, UserError
from phalanx.launch.files import write_file

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def names(folder: Path) -> list[str]:
    """The names of all secrets in a folder; one that does not exist has none."""
    if not folder.is_dir():
        return []
    return sorted(file.name for file in folder.iterdir() if _NAME.fullmatch(file.name))


def store(folder: Path, name: str, value: str) -> None:
    """Store a secret, and replace an earlier value. Raises UserError, PlatformError."""
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{name!r} cannot be the name of a variable", "use letters, digits and _")
    if not value or "\0" in value:
        raise UserError(f"secret {name}: the value is empty, or holds a zero byte")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(folder / name, value.encode())
    except OSError as error:
        raise PlatformError(f"{folder / name}: cannot be written: {error.strerror}") from error


def remove(folder: Path, name: str) -> None:
    """Delete a secret. Raises NotFound, also for an invalid name, so that no path leaves the folder."""
    try:
        _file(folder, name).unlink()
    except OSError as error:
        raise NotFound(f"there is no secret {name} in {folder}") from error


def read(folder: Path, wanted: Iterable[str]) -> dict[str, str]:
    """Values by name. Raises NotFound, which names what is missing and never quotes a value."""
    found: dict[str, str] = {}
    for name in wanted:
        try:
            found[name] = _file(folder, name).read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            hint = f"phalanx secrets set {name}"
            raise NotFound(f"secret {name} cannot be read: {type(error).__name__}", hint) from error
    return found


def _file(folder: Path, name: str) -> Path:
    if _NAME.fullmatch(name) is None:
        raise NotFound(f"there is no secret {name!r}: names are letters, digits and _")
    return folder / name
