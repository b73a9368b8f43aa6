"""Where Node is: the committed files of the web UI are what its sources make, and their tests pass."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
DIST = ROOT / "src/phalanx/server/web/dist"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.extras,
    pytest.mark.skipif(
        shutil.which("node") is None or not (WEB / "node_modules/vite").exists(),
        reason="NOT COMPARED: the web UI's files; needs Node 20 and `npm ci --prefix web`",
    ),
]


def run(*command: object) -> str:
    done = subprocess.run(
        [str(one) for one in command], cwd=WEB, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_committed_files_are_what_the_sources_make(tmp_path: Path) -> None:
    run("node_modules/.bin/vite", "build", "--outDir", tmp_path / "dist")
    made = {one.name: one.read_bytes() for one in (tmp_path / "dist").iterdir()}
    committed = {one.name: one.read_bytes() for one in DIST.iterdir()}
    assert made.keys() == committed.keys(), "run `make ui` and commit what it writes"
    assert [name for name in made if made[name] != committed[name]] == []


def test_the_sources_agree_with_the_api_and_their_tests_pass(tmp_path: Path) -> None:
    run(sys.executable, ROOT / "scripts/generate_ui_types.py")
    run("node_modules/.bin/tsc", "--noEmit")
    said = run("npm", "test", "--silent")
    assert "# fail 0" in said and "# pass 0" not in said
