"""What pyproject.toml cannot say: `PHALANX_COMPILE=1 pip install .` compiles the planner with mypyc.

Without the variable nothing happens here, and the wheel is pure Python. Which files are compiled is
listed in pyproject.toml under `tool.phalanx.compiled`. `PHALANX_COMPILE=quick` leaves the C compiler's
optimization out: it takes a fraction of the time, for tests of what mypyc makes of the sources.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent


def asked() -> bool:
    """Whether the environment asks for a compiled planner."""
    return os.environ.get("PHALANX_COMPILE", "") not in ("", "0")


def extensions() -> list[Extension]:
    """The listed files as one group: calls between them go past the interpreter."""
    if {"egg_info", "dist_info"} & set(sys.argv):
        return []  # pip only asks what the build needs, and what it will be called
    try:
        from mypyc.build import mypycify
    except ImportError:
        sys.exit("PHALANX_COMPILE=1 needs mypyc: pip install 'mypy>=2,<3'")
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["phalanx"]["compiled"]
    os.chdir(ROOT)
    # mypy reads the sources of this tree, not of a Phalanx that is installed.
    os.environ["MYPYPATH"] = "src"
    files = sorted({str(path) for glob in table["files"] for path in Path().glob(glob)})
    kept = [name for name in files if not name.endswith("__init__.py") and name not in table["but"]]
    # Several C files: a compiler takes much longer, and much more memory, for a single one.
    built: list[Extension] = mypycify(
        ["--config-file=", *kept],
        opt_level="0" if os.environ["PHALANX_COMPILE"] == "quick" else "2",
        debug_level="0",
        multi_file=True,
    )
    return built


if asked():
    setup(ext_modules=extensions(), setup_requires=["mypy>=2,<3"])
else:
    setup()
