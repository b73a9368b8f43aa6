"""An installation from requirements/server.txt: pip checks the digest of every file; the program starts."""

import json
import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-release" / "bin"

pytestmark = pytest.mark.integration


def pip(folder: Path, *words: str) -> subprocess.CompletedProcess:
    command = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--require-hashes",
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.extras
def test_the_control_plane_runs_from_the_lock_and_a_changed_file_is_refused(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    first, rest = (ROOT / "requirements" / "server.txt").read_text().split("\nannotated-doc", 1)
    changed = tmp_path / "changed.txt"
    changed.write_text(
        re.sub(r"sha256:[0-9a-f]{8}", "sha256:00000000", first) + "\nannotated-doc" + rest
    )
    refused = pip(tmp_path / "venv", "--no-deps", "-r", str(changed))
    if "No matching distribution" in refused.stderr or "Could not find a version" in refused.stderr:
        pytest.skip("the package index cannot be reached; pip install needs it")
    assert refused.returncode != 0 and "DO NOT MATCH THE HASHES" in refused.stderr, refused.stderr

    installed = pip(tmp_path / "venv", "-r", str(ROOT / "requirements" / "server.txt"))
    assert installed.returncode == 0, installed.stderr
    words = [
        tmp_path / "venv" / "bin" / "python",
        "-c",
        "import phalanx.cli.__main__, phalanx.server.app, phalanx.store, phalanx.server.rpc.listener; "
        "import grpc_health, grpc_reflection",
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(tmp_path),
    }
    started = subprocess.run(
        words, capture_output=True, text=True, timeout=100, env=environment, check=False
    )
    assert started.returncode == 0, started.stderr


@pytest.mark.extras
@pytest.mark.skipif(
    not (TOOLS / "cyclonedx-py").exists(),
    reason="`make sbom` installs the tools that this test needs",
)
def test_the_bill_of_materials_names_every_locked_package(tmp_path):
    out = tmp_path / "phalanx.cdx.json"
    words = [TOOLS / "cyclonedx-py", "requirements", ROOT / "requirements" / "train.txt"]
    words += ["--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--output-file", out]
    made = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    bill = json.loads(out.read_text())
    named = {part["name"].lower() for part in bill["components"]}
    locked = re.findall(
        r"^([\w.-]+)(?:\[[\w,-]+\])?==", (ROOT / "requirements" / "train.txt").read_text(), re.M
    )
    assert bill["bomFormat"] == "CycloneDX" and named == {name.lower() for name in locked}
    assert all(part["externalReferences"][0]["hashes"] for part in bill["components"])


@pytest.mark.proof
@pytest.mark.skipif(
    not (TOOLS / "pip-audit").exists(),
    reason="`make audit` installs the tools that this test needs",
)
@pytest.mark.parametrize("name", ["server", "train", "release"])
def test_no_advisory_concerns_a_locked_package(name):
    words = [TOOLS / "pip-audit", "--disable-pip", "--require-hashes", "--format", "json"]
    words += ["--requirement", ROOT / "requirements" / f"{name}.txt"]
    asked = subprocess.run(words, capture_output=True, text=True, timeout=1000, check=False)
    try:
        packages = json.loads(asked.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        pytest.skip(f"the database of advisories cannot be reached: {asked.stderr.strip()[-200:]}")
    if all("skip_reason" in package for package in packages):
        pytest.skip("the package index has no database of advisories")
    assert not [package["name"] for package in packages if "skip_reason" in package], "not audited"
    assert not [
        (package["name"], advisory["id"]) for package in packages for advisory in package["vulns"]
    ]
