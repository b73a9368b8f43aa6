"""A child that completes deletions until it is killed: prints a line before and after each part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from integration.rig import open_rig
from phalanx.services.retention import files
from phalanx.services.retention.work import deletions_step
from phalanx.store.retention import deletions

PARTS = (
    (files, "remove_job_folder"),
    (files, "remove_near"),
    (deletions, "drop_rows"),
    (deletions, "checkpoint_names"),
    (files, "remove_copies"),
    (deletions, "count"),
    (deletions, "finish"),
)


def told(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def tell(*given: Any, **rest: Any) -> Any:
        print("before", name, flush=True)
        found = work(*given, **rest)
        print("after", name, flush=True)
        return found

    return tell


def main(root: str) -> None:
    for module, name in PARTS:
        setattr(module, name, told(name, getattr(module, name)))
    with open_rig(Path(root)) as rig:
        rig.clock.advance(86_400.0)
        deletions_step(rig.platform, rig.clock.now())
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
