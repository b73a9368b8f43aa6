"""List the software that a Python interpreter sees. Also runs as a file in another interpreter.

Standard library only, and nothing of this project: the interpreter may have none of it. Nothing is
imported but the folders' metadata: torch alone would take seconds.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

MAX_PACKAGES = 5000
_MAX_TEXT = 200
_DIST = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist|egg)-info")
_DRIVER = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]*)")
_TORCH = {
    name: re.compile(rf"^{name}\b[^=\n]*=\s*'([^'\n]+)'", re.MULTILINE)
    for name in ("__version__", "cuda", "hip")
}
_NVIDIA, _AMD = Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version")


def describe(folders: list[str] | None = None) -> dict[str, Any]:
    """Describe this interpreter, as the fields of `core.contract.provenance.InstalledSoftware`.

    `folders` are those of its packages, in the order of `sys.path`, where they are given.
    """
    here = list(sys.path) if folders is None else folders
    torch = _torch(here)
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform()[:_MAX_TEXT],
        "torch": torch.get("__version__", ""),
        "cuda": torch.get("cuda", ""),
        "hip": torch.get("hip", ""),
        "driver": _driver(),
        "packages": packages(here),
    }


def packages(folders: list[str]) -> dict[str, str]:
    """The version of each distribution by its normalized name; the first folder that has it counts."""
    found: dict[str, str] = {}
    for folder in folders:
        if os.path.basename(folder).endswith("-packages"):
            for name, version in _in_folder(folder):
                if len(found) < MAX_PACKAGES:
                    found.setdefault(name, version)
    return dict(sorted(found.items()))


def _in_folder(folder: str) -> list[tuple[str, str]]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = []
    for name in names:
        if (match := _DIST.fullmatch(name)) is not None:
            version = match["version"] + _source(os.path.join(folder, name, "direct_url.json"))
            key = re.sub(r"[-_.]+", "-", match["name"]).lower()
            found.append((key[:_MAX_TEXT], version[:_MAX_TEXT]))
    return found


def _source(path: str) -> str:
    """Where a distribution came from that is not of an index: the commit, or that it is editable."""
    try:
        body = json.loads(Path(path).read_bytes())
        commit = (body.get("vcs_info") or {}).get("commit_id")
        editable = (body.get("dir_info") or {}).get("editable")
    except (OSError, ValueError, AttributeError):
        return ""
    return f" @ {commit}" if commit else " (editable)" if editable else ""


def _torch(folders: list[str]) -> dict[str, str]:
    for folder in folders:
        try:
            text = Path(folder, "torch", "version.py").read_text("utf-8")
        except (OSError, ValueError):
            continue
        found = {name: rule.search(text) for name, rule in _TORCH.items()}
        return {name: one[1][:_MAX_TEXT] for name, one in found.items() if one is not None}
    return {}


def _driver() -> str:
    for path, rule in ((_NVIDIA, _DRIVER), (_AMD, re.compile(r"(\S+)"))):
        try:
            found = rule.search(path.read_text("utf-8", "replace"))
        except OSError:
            continue
        if found is not None:
            return found[1][:_MAX_TEXT]
    return ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(describe()))
