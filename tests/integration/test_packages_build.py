"""The builder with a real pip, without a network: layers, one build for all, and kills in the middle."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.supervise.packages import interpreter, requirements
from phalanx.supervise.packages.environments import EnvironmentStore
from phalanx.supervise.packages.plan import VERDICT
from tinywheel import make_wheel

pytestmark = pytest.mark.integration
GUARD_S = 120.0
PROGRAM = (
    "import sys; from phalanx.supervise.packages.build import main; sys.exit(main(sys.argv[1]))"
)
# The guard off: what is being built counts as built at once.
TOO_EARLY = (
    "import sys; from phalanx.supervise.packages import build, environments as kept; "
    "new = kept.EnvironmentStore.new\n"
    "def early(self, digest, suffix):\n"
    "    folder = new(self, digest, suffix)\n"
    "    self.commit(digest, folder, {})\n"
    "    return folder\n"
    "kept.EnvironmentStore.new = early\n"
    "sys.exit(build.main(sys.argv[1]))"
)


def request(tmp_path, *packages, name="a", **fields):
    base = interpreter.describe()
    want = {
        "requirements": None,
        "packages": list(packages),
        "installer": "pip",
        "index_url": "none",
        "extra_index_urls": [],
        "find_links": [str(tmp_path / "wheels")],
        **fields,
    }
    digest = requirements.digest(tmp_path, want, None, base, sys.executable)
    folder = tmp_path / name
    folder.mkdir()
    path = folder / "packages.json"
    body = {"wanted": want, "root": str(tmp_path / "python"), "digest": digest, "base": base}
    path.write_text(json.dumps({**body, "python": sys.executable, "workdir": str(tmp_path)}))
    return path, EnvironmentStore(tmp_path / "python"), digest


def start(path, program=PROGRAM, **env):
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, **env},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def verdict(path):
    return json.loads(path.with_name(VERDICT).read_text())


def answer(store, digest, code):
    python = store.path(digest) / "bin" / "python"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, cwd="/", check=False
    )


@pytest.mark.parametrize(
    "installer",
    ["pip", pytest.param("uv", marks=pytest.mark.skipif(not shutil.which("uv"), reason="no uv"))],
)
def test_two_who_ask_at_once_get_one_build_over_the_base(tmp_path, installer):
    make_wheel(tmp_path / "wheels", "tinypkg", requires=["pytest", "torch"])
    (tmp_path / "requirements.txt").write_text("tinypkg\n")
    fields = {"requirements": "requirements.txt", "installer": installer}
    paths = [request(tmp_path, name=name, **fields)[0] for name in ("one", "two")]
    _, store, digest = request(tmp_path, name="three", **fields)
    said = [one.communicate(timeout=GUARD_S)[1] for one in [start(path) for path in paths]]
    assert sorted("building" in text for text in said) == [False, True]
    assert all(verdict(path)["cause"] is None for path in paths)
    # What the base has is seen, not copied: pytest, which the wheel requires, and the library itself.
    code = "import phalanx, pytest, tinypkg; print(pytest.__file__); print(tinypkg.__file__)"
    done = answer(store, digest, code)
    assert done.returncode == 0, done.stderr
    shared, own = done.stdout.splitlines()
    assert shared == pytest.__file__
    assert Path(own).is_relative_to(store.path(digest))


@pytest.mark.parametrize(("program", "used"), [(PROGRAM, False), (TOO_EARLY, True)])
def test_a_build_that_is_killed_is_never_used(tmp_path, program, used):
    """And the negative control: were a build visible from its beginning, its half would be used."""
    fake = tmp_path / "bin"
    fake.mkdir()
    mark = tmp_path / "began"
    (fake / "uv").write_text(
        f"#!/bin/sh\necho $$ > {mark}.tmp; mv {mark}.tmp {mark}; exec sleep 1000\n"
    )
    (fake / "uv").chmod(0o700)
    path, store, digest = request(tmp_path, "tinypkg", installer="uv")
    builder = start(path, program, PATH=f"{fake}:{os.environ['PATH']}")
    deadline = time.monotonic() + GUARD_S
    while not mark.exists():
        assert time.monotonic() < deadline, builder.communicate()
        time.sleep(0.01)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.communicate()
    held = store.hold(digest)
    assert (held is not None) is used
    if held is not None:
        os.close(held)
        assert "No module named 'tinypkg'" in answer(store, digest, "import tinypkg").stderr
    assert list(store.root.glob(f"{digest}-*"))  # the debris lies there


def test_an_installer_that_is_not_there(tmp_path):
    path, store, digest = request(tmp_path, "tinypkg", installer="uv")
    builder = start(path, PATH="/nowhere")
    builder.communicate(timeout=GUARD_S)
    assert builder.returncode == 1
    assert verdict(path)["cause"] == "user_error"
    assert "uv is not installed on this node" in verdict(path)["message"]
    assert store.hold(digest) is None
    assert list(store.root.glob(f"{digest}-*")) == []
