"""The Git state of a work directory."""

import subprocess
from pathlib import Path

import pytest

from phalanx.cli.client.source_state import MAX_CHANGED, MAX_DIFF_CHARS, source_of
from phalanx.schemas.api import provenance

pytestmark = pytest.mark.unit


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *who, *words], capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_the_commit_and_every_difference_of_tracked_files_are_known(tmp_path: Path) -> None:
    assert source_of(tmp_path) is None
    git(tmp_path, "init", "-q", "-b", "topic")
    assert source_of(tmp_path) is None  # no commit yet
    for number in range(60):
        (tmp_path / f"f{number:02}.py").write_text("a = 1\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean = source_of(tmp_path).state
    assert clean.commit == git(tmp_path, "rev-parse", "HEAD")
    assert (clean.branch, clean.num_changed, clean.diff_digest) == ("topic", 0, "")
    (tmp_path / "untracked").write_text("x")
    (tmp_path / "f07.py").write_text("a = 2\n")
    found = source_of(tmp_path)
    dirty = found.state
    assert "+a = 2" in found.diff and not dirty.diff_cut
    assert dirty.changed == ("f07.py",) and len(dirty.diff_digest) == 64
    for number in range(60):
        (tmp_path / f"f{number:02}.py").write_text("a = 3\n")
    many = source_of(tmp_path).state
    assert (len(many.changed), many.num_changed) == (MAX_CHANGED, 60)
    assert many.diff_digest != dirty.diff_digest
    limits = (provenance.MAX_CHANGED, provenance.MAX_DIFF_CHARS)
    assert limits == (MAX_CHANGED, MAX_DIFF_CHARS)
    (tmp_path / "f07.py").write_text("a = 1\n" * MAX_DIFF_CHARS)
    long = source_of(tmp_path)
    assert long.state.diff_cut and len(long.diff) <= MAX_DIFF_CHARS
    assert provenance.SourceRequest.of(many) is not None
