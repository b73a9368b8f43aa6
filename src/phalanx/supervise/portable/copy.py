"""Copy the tree that runs this program into a folder: `python -m phalanx.supervise.portable.copy FOLDER`.

An init container runs it, and the container of the ranks mounts the folder. Every file is compared with
the digest of the manifest while it is copied, and the manifest is written last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from phalanx.errors import UserError
from phalanx.kit.interpreter import MANIFEST, command_in, tree_root

_TRY_S = 60.0


def copy_tree(source: Path, target: Path) -> int:
    """Copy a tree and return its bytes. Raises UserError where a file is not as it was built."""
    files = _files(source)
    (target / MANIFEST).unlink(missing_ok=True)
    total = 0
    for name, digest in files.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            found, size = _copy(source / name, place)
        except FileNotFoundError:
            raise UserError(
                f"{source / name} is missing: build the image of the tree again"
            ) from None
        if found != digest:
            raise UserError(f"{source / name} was changed: build the image of the tree again")
        total += size
    shutil.copy(source / MANIFEST, target / MANIFEST)
    return total


def _files(source: Path) -> Mapping[str, str]:
    try:
        files = json.loads((source / MANIFEST).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{source} is no supervisor tree: {error}") from None
    for name in files:
        if name.startswith("/") or ".." in name.split("/"):
            raise UserError(f"{source / MANIFEST} names a file outside the tree: {name}")
    return dict(files)


def _copy(source: Path, place: Path) -> tuple[str, int]:
    """Copy one file or link; returns what the manifest would say of it, and its bytes."""
    if source.is_symlink():
        place.symlink_to(os.readlink(source))
        return f"-> {os.readlink(source)}", 0
    data = source.read_bytes()
    mode = source.stat().st_mode & 0o777
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
    place.chmod(mode)  # whatever the umask is: another user may run the ranks
    return hashlib.sha256(data).hexdigest(), len(data)


def attempt(tree: Path) -> str:
    """Run the Python of a tree; returns why that is not possible, empty where it is."""
    words = command_in(str(tree), "-S", "-c", "")
    try:
        done = subprocess.run(
            words, env={}, capture_output=True, text=True, timeout=_TRY_S, check=False
        )
    except PermissionError:
        return f"programs in {tree} may not be executed: is its volume mounted with noexec?"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the tree in {tree} cannot be executed: {error}"
    return "" if done.returncode == 0 else f"the tree in {tree} does not run: {done.stderr.strip()}"


def main(argv: Sequence[str]) -> int:
    """Copy the own tree; returns 1 with a message where that fails."""
    if len(argv) != 1:
        print("usage: python -m phalanx.supervise.portable.copy FOLDER", file=sys.stderr)  # noqa: T201
        return 2
    target = Path(argv[0])
    source = tree_root()
    try:
        if source is None:
            raise UserError(f"{sys.prefix} is no supervisor tree, so that there is nothing to copy")
        total = copy_tree(source, target)
    except (UserError, OSError) as error:
        print(f"the supervisor cannot be copied: {error}", file=sys.stderr)  # noqa: T201
        return 1
    if said := attempt(target):
        print(said, file=sys.stderr)  # noqa: T201
        return 1
    print(f"copied {total / 1e6:.1f} MB to {target}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
