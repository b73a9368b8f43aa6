"""Describe a Python interpreter and its installed packages. Also runs as a file in it.

Standard library only, and nothing of this project: the interpreter may have none of it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

_ANSWER_S = 60.0
# The `INSTALLER` of metadata that stands for a distribution in another folder.
STAND_IN = "phalanx-base"


class InterpreterUnusable(OSError):
    """The interpreter could not be run to describe itself."""


def describe() -> dict[str, Any]:
    """Describe this interpreter: version, platform, torch, and a digest of its distributions."""
    folders = [one for one in sys.path if os.path.basename(one).endswith("-packages")]
    seen = sorted({name for one in folders for name in _distributions(one)})
    in_environment = sys.prefix != sys.base_prefix
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    return {
        "version": sys.version,
        "platform": sysconfig.get_platform(),
        "torch": torch,
        "distributions": hashlib.sha256("\n".join(seen).encode()).hexdigest(),
        "folders": folders,
        # An environment made from within another one does not see the other's packages by itself.
        "parents": site.getsitepackages([sys.prefix]) if in_environment else [],
        "system": not in_environment or _sees_system(sys.prefix),
        "pip": importlib.util.find_spec("pip") is not None,
    }


def ask(python: str) -> dict[str, Any]:
    """Run `describe` in another interpreter. Raises InterpreterUnusable."""
    try:
        done = subprocess.run(
            [python, str(Path(__file__).resolve())],
            capture_output=True,
            timeout=_ANSWER_S,
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InterpreterUnusable(
            f"the interpreter {python} could not list its packages: {error}"
        ) from error
    return found


def stand_in(folder: Path) -> None:
    """Show every distribution that this interpreter sees inside `folder` too, by its metadata alone.

    For installers that look in no other folder: they do not install these distributions again.
    """
    for one in importlib.metadata.distributions():
        text = one.read_text("METADATA")
        name = one.metadata["Name"]
        if text is None or not name:
            continue
        # By the rule of the format: the name without dashes, then the version.
        place = folder / f"{name.replace('-', '_')}-{one.version}.dist-info"
        if not place.exists():
            place.mkdir()
            (place / "METADATA").write_text(text, encoding="utf-8")
            (place / "INSTALLER").write_text(f"{STAND_IN}\n")
            rows = [f"{place.name}/{file},,\n" for file in ("METADATA", "INSTALLER", "RECORD")]
            (place / "RECORD").write_text("".join(rows))


def remove_stand_ins(folder: Path) -> None:
    """Remove what `stand_in` has written."""
    for mark in folder.glob("*.dist-info/INSTALLER"):
        if mark.read_text().strip() == STAND_IN:
            shutil.rmtree(mark.parent)


def _distributions(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [name for name in names if name.endswith((".dist-info", ".egg-info", ".egg-link"))]


def _sees_system(prefix: str) -> bool:
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            lines = [line.partition("=") for line in file]
    except OSError:
        return True
    found = {key.strip(): value.strip().lower() for key, _, value in lines}
    return found.get("include-system-site-packages") == "true"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        stand_in(Path(sys.argv[1]))
    else:
        print(json.dumps(describe()))  # noqa: T201 - the answer
