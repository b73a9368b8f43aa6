"""Staging of the checkpoint to begin from: `python -m phalanx.train.programs.resume_from REQUEST`.

The supervisor runs it before the first ranks start. REQUEST is a file of JSON: `{"places": [path or URL],
"into": folder}`. The first place that can be read counts. A checkpoint on a disk is verified where it is;
one in an object store is fetched into `into`, and every byte is compared with its digest on the way.
`REQUEST.staged` then holds the path of the verified folder. The exit code is 102 where nothing usable is
there, which a restart would not change.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx import checkpoint
from phalanx.checkpoint.remote import fetch, look
from phalanx.checkpoint.remote_store import open_store
from phalanx.core.training.checkpoints import MANIFEST, Manifest, is_checkpoint_name
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    NotFound,
    PlatformError,
)
from phalanx.kit.text import random_hex
from phalanx.launch.identity import STAGED_SUFFIX
from phalanx.train.gang import context

NOT_USABLE = 102
_NOT_THERE = "there is no committed checkpoint here"


def main(arguments: Sequence[str] | None = None) -> int:
    """Stage the checkpoint; returns 0, or an exit code with the error on the last line."""
    words = sys.argv[1:] if arguments is None else arguments
    request: dict[str, Any] = json.loads(Path(words[0]).read_bytes())
    into, code = Path(request["into"]), NOT_USABLE
    said = list[str]()
    for place in request["places"]:
        try:
            path, manifest = stage(place, into, context.store_variables())
        except (CheckpointNotFound, CheckpointCorrupt, NotFound) as error:
            said.append(f"{place}: {error.message}")
        except PlatformError as error:
            said, code = [*said, f"{place}: {error.message}"], error.exit_code
        except OSError as error:
            said, code = [*said, f"{place}: {error.strerror}"], 1
        else:
            body = {"path": str(path), "step": manifest.step, "why": manifest.why}
            Path(words[0] + STAGED_SUFFIX).write_text(json.dumps(body))
            return 0
    sys.stdout.write(f"resume_from: {'; '.join(said)}\n")
    return code


def stage(place: str, into: Path, env: Mapping[str, str]) -> tuple[Path, Manifest]:
    """The verified folder of a checkpoint, given its place or that of a folder with some.

    Raises CheckpointNotFound, CheckpointCorrupt, NotFound, PlatformError, OSError.
    """
    if "://" in place:
        path = _fetched(place.rstrip("/"), into, env)
    else:
        path = Path(place)
        if not (path / MANIFEST).exists():
            return _newest(path)
    return path, checkpoint.verify(path)


def _newest(folder: Path) -> tuple[Path, Manifest]:
    """The newest checkpoint in a folder that verifies. Raises CheckpointNotFound, CheckpointCorrupt."""
    bad: CheckpointCorrupt | None = None
    for one in checkpoint.resume_order(checkpoint.scan(folder)):
        try:
            return one.path, checkpoint.verify(one.path)
        except CheckpointCorrupt as error:
            bad = error
    raise bad or CheckpointNotFound(_NOT_THERE)


def _fetched(url: str, into: Path, env: Mapping[str, str]) -> Path:
    """A copy of a checkpoint in an object store. Raises NotFound, CheckpointCorrupt, PlatformError."""
    above, _, name = url.rpartition("/")
    if not is_checkpoint_name(name):
        above = url
        good = look(open_store(url, env)).good
        if not good:
            raise CheckpointNotFound(_NOT_THERE)
        name = max(good.values(), key=lambda one: (one.order, one.created_at)).name
    if (into / name).is_dir():
        return into / name  # of an earlier generation; verified again
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    return fetch(open_store(above, env), name, into, random_hex(8))


if __name__ == "__main__":
    sys.exit(main())
