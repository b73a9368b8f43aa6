"""Scripts that run with hooks: functions of a library are replaced right after the script imports it."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


def install(patches: Mapping[str, Patch]) -> None:
    """Run each patch after the import of its module; at once where that is imported already."""
    left = dict(patches)
    for name in [name for name in left if name in sys.modules]:
        left.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(left))


class _AfterImport(importlib.abc.MetaPathFinder):
    """An import hook that runs a patch after a module is imported."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _follow(spec.loader, patch)
        return spec


def _follow(loader: Any, patch: Patch) -> None:
    """Run `patch` after `loader.exec_module`, which belongs to this one module."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        patch(module)

    loader.exec_module = exec_module


def hooked_words(command: Sequence[str], *, shell: bool, hooks: str) -> list[str] | None:
    """Return the command of a Python script under the module `hooks`; None for another command.

    With `shell`, the command is one line.
    """
    words: list[str] = list(command)
    if shell:
        from shlex import split

        with contextlib.suppress(ValueError):
            words = split(command[0])
        if any(mark in command[0] for mark in "|&;<>$`(){}*?~") or "=" in words[0]:
            return None
    if Path(words[0]).name.startswith("python") and len(words) > 1 and words[1] != "-c":
        rest = words[1:]
        while rest and rest[0] in ("-u", "-B", "-I"):
            rest = rest[1:]
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return [words[0], "-m", hooks, *rest]
    return None


def run_script(words: Sequence[str]) -> None:
    """Run a script, or a module after `-m`, as Python itself would."""
    if words[0] == "-m":
        sys.argv = list(words[1:])
        sys.path.insert(0, "")
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")
