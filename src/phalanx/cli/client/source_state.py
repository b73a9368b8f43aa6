"""The Git state of a work directory: the commit, and how its files differ from it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from phalanx.core.contract.job import SourceState

MAX_CHANGED = 50
_MAX_PATH = 300
_MAX_BRANCH = 200


def commit_of(root: Path) -> str:
    """The Git commit of a folder, with `-dirty` if files differ from it; empty without a repository."""
    commit = _git(root, "rev-parse", "--short=12", "HEAD") if _is_in_repository(root) else ""
    if not commit:
        return ""
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit + ("-dirty" if changed else "")


def source_of(root: Path) -> SourceState | None:
    """The Git state of a folder; None without a repository or a commit.

    Only tracked files count as changed. The text of the difference is not taken: the code archive has
    the files as they are.
    """
    commit = _git(root, "rev-parse", "HEAD") if _is_in_repository(root) else ""
    if not commit:
        return None
    changed = _git(root, "diff", "HEAD", "--name-only").splitlines()
    diff = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color") if changed else ""
    return SourceState(
        commit,
        _git(root, "symbolic-ref", "--short", "--quiet", "HEAD")[:_MAX_BRANCH],
        tuple(name[:_MAX_PATH] for name in changed[:MAX_CHANGED]),
        len(changed),
        hashlib.sha256(diff.encode("utf-8", "surrogateescape")).hexdigest() if diff else "",
    )


def _is_in_repository(root: Path) -> bool:
    return any((at / ".git").exists() for at in (root.absolute(), *root.absolute().parents))


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=5,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
