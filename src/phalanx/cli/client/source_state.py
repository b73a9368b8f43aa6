"""The Git state of a work directory, and the places of checkpoints that do not depend on the directory."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.core.contract.job import SourceState
from phalanx.core.contract.source_text import shown_difference
from phalanx.kit.text import replace_unencodable

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import SubmitRequest
    from phalanx.schemas.api.provenance import SourceRequest

MAX_CHANGED = 50
# The same limit as that of `schemas.api.provenance`, which the verbs import late.
MAX_DIFF_CHARS = 1 << 18
_MAX_PATH = 300
_MAX_BRANCH = 200


def commit_of(root: Path) -> str:
    """The Git commit of a folder, with `-dirty` if files differ from it; empty without a repository."""
    commit = _git(root, "rev-parse", "--short=12", "HEAD") if _is_in_repository(root) else ""
    if not commit:
        return ""
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit + ("-dirty" if changed else "")


@dataclass(frozen=True, slots=True)
class SourceFound:
    """The Git state of a folder, and the text of its difference without credentials."""

    state: SourceState
    diff: str = ""


def source_of(root: Path) -> SourceFound | None:
    """The Git state of a folder; None without a repository or a commit.

    Only tracked files count as changed. Of a long difference the text is only the beginning.
    """
    commit = _git(root, "rev-parse", "HEAD") if _is_in_repository(root) else ""
    if not commit:
        return None
    changed = _git(root, "diff", "HEAD", "--name-only").splitlines()
    diff = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color") if changed else ""
    text, cut = shown_difference(diff + "\n" if diff else "", MAX_DIFF_CHARS)
    state = SourceState(
        commit,
        _git(root, "symbolic-ref", "--short", "--quiet", "HEAD")[:_MAX_BRANCH],
        tuple(name[:_MAX_PATH] for name in changed[:MAX_CHANGED]),
        len(changed),
        hashlib.sha256(diff.encode("utf-8", "surrogateescape")).hexdigest() if diff else "",
        diff_cut=cut,
    )
    return SourceFound(state, replace_unencodable(text))


def source_request(root: Path) -> SourceRequest | None:
    """The Git state of a folder as it is sent; None: it has none."""
    from phalanx.schemas.api.provenance import SourceRequest

    found = source_of(root)
    return None if found is None else SourceRequest.of(found.state, found.diff)


def difference_once(requests: Sequence[SubmitRequest]) -> list[SubmitRequest]:
    """The requests with the text of each difference in the first of them alone, which holds for all."""
    seen: set[tuple[str, str]] = set()
    found = []
    for one in requests:
        if (source := one.source) is not None:
            key = (source.commit, source.diff_digest)
            if key in seen:
                short = source.model_copy(update={"diff": ""})
                one = one.model_copy(update={"source": short})
            seen.add(key)
        found.append(one)
    return found


def absolute_reference(text: str | None, cwd: Path) -> str | None:
    """A reference to a checkpoint with a path that does not depend on the directory of the caller."""
    from phalanx.core.contract.resume import ResumeReference

    if text is None or text.startswith("/"):
        return text
    try:
        return text if ResumeReference.parse(text) else None
    except ValueError:
        path = os.path.normpath(cwd / text)
        # What is no path either is refused with the words of the spec.
        return path if os.path.exists(path) else text


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
