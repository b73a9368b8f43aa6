"""The secret variables of one job: a file of mode 0600, read when a supervisor starts and nowhere else.

No value ever stands in a spec, an assignment, the database, a report or a message. Folders with secrets
by name are of an earlier release, and are only read.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from phalanx.errors import NotFound, PlatformError
from phalanx.launch.files import write_file

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def names(folder: Path) -> list[str]:
    """The names of all secrets in a folder; one that does not exist has none."""
    if not folder.is_dir():
        return []
    return sorted(file.name for file in folder.iterdir() if _NAME.fullmatch(file.name))


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


def store_own(path: Path, layers: Mapping[str, Mapping[str, str]]) -> None:
    """Store the secret variables of a job by layer, or delete an earlier file. Raises PlatformError."""
    try:
        if not layers:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, json.dumps(layers).encode())
    except OSError as error:
        raise PlatformError(f"{path}: cannot be written: {error.strerror}") from error


def read_own(path: Path, wanted: Mapping[str, str]) -> dict[str, str]:
    """Values of a job's secret variables; `wanted` has the layer of each. Raises NotFound."""
    if not wanted:
        return {}
    try:
        layers = json.loads(path.read_bytes())
        return {name: str(layers[layer][name]) for name, layer in wanted.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        # Never quote what was read: it may hold values.
        said = f"the secret variables of the job cannot be read: {type(error).__name__}"
        raise NotFound(said, "submit the job again") from error


def values_of(own: Path) -> list[str]:
    """All values of a job's own secret variables; none where the file is gone."""
    found: list[str] = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found += [
            str(one) for each in json.loads(own.read_bytes()).values() for one in each.values()
        ]
    return found


def _file(folder: Path, name: str) -> Path:
    if _NAME.fullmatch(name) is None:
        raise NotFound(f"there is no secret {name!r}: names are letters, digits and _")
    return folder / name
