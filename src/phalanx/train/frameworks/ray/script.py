"""Run the user's script with the hooks in place: `python -m phalanx.train.frameworks.ray.script X …`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from phalanx.train.frameworks.ray import hooks


def main() -> None:
    """Run a script, or a module after `-m`."""
    words = sys.argv[1:]
    hooks.install()
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, "")
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
