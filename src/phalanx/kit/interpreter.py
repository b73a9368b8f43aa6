"""How a program starts another one with its own Python, also where that Python is a self-contained tree.

A tree is a folder with a Python, its standard library, packages and every shared library that they load,
the loader of shared libraries included. It runs on any Linux kernel of its architecture, whatever the file
system around it holds. Its Python cannot be executed by itself: the kernel would look for a loader that the
file system may not have, or has in another version. So the tree's own loader is executed, with the
Python as its argument.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

LOADER = "bin/loader"
"""The loader of shared libraries, in a tree. It is a static program."""
PYTHON = "bin/python"
NATIVE = "lib/native"
"""The shared libraries of a tree."""
MANIFEST = "tree.json"
"""Digests of a tree's files. It is written last, so that a folder with one is a whole tree."""
AUTHORITIES = "etc/cacert.pem"
"""The certificate authorities that a tree accepts where the file system around it has none."""


@cache
def tree_root() -> Path | None:
    """The tree that this program runs in; None: it runs in an installed Python."""
    root = Path(sys.base_prefix)
    return root if (root / MANIFEST).is_file() and (root / LOADER).is_file() else None


def command_in(tree: str, *arguments: str) -> list[str]:
    """The argument vector of a Python program in a tree.

    The tree's Python reads no variables of Python and no packages of a user: those are of other Pythons.
    """
    libraries = ["--library-path", f"{tree}/{NATIVE}"]
    return [f"{tree}/{LOADER}", *libraries, f"{tree}/{PYTHON}", "-I", *arguments]


def own_python(*arguments: str) -> list[str]:
    """The argument vector of a program that runs in the same Python as this one."""
    root = tree_root()
    return [sys.executable, *arguments] if root is None else command_in(str(root), *arguments)
