"""What an interpreter sees is listed from folders alone, without imports."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.schemas.wire.supervision import SoftwareReport
from phalanx.supervise.packages import installed

pytestmark = pytest.mark.unit


def distribution(folder: Path, name: str, url: dict | None = None) -> None:
    place = folder / name
    place.mkdir(parents=True)
    if url is not None:
        (place / "direct_url.json").write_text(json.dumps(url))


def test_every_kind_of_metadata_is_read_and_the_first_folder_counts(tmp_path):
    first, second = tmp_path / "a" / "site-packages", tmp_path / "b" / "dist-packages"
    distribution(first, "My_Pkg-1.2.dist-info")
    distribution(first, "old-0.3-py3.11.egg-info")
    distribution(first, "from_git-2.0.dist-info", {"vcs_info": {"commit_id": "abc123"}})
    distribution(first, "local-3.dist-info", {"dir_info": {"editable": True}})
    distribution(first, "broken.dist-info")
    distribution(second, "my.pkg-9.9.dist-info")
    distribution(second, "only_here-1.dist-info", {})
    torch = second / "torch"
    torch.mkdir()
    (torch / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.13.0+cu130'\n"
        "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    found = installed.describe([str(first), str(second), str(tmp_path / "missing-packages")])
    assert found["packages"] == {
        "from-git": "2.0 @ abc123",
        "local": "3 (editable)",
        "my-pkg": "1.2",
        "old": "0.3",
        "only-here": "1",
    }
    assert (found["torch"], found["cuda"], found["hip"]) == ("2.13.0+cu130", "13.0", "")


def test_another_interpreter_gives_what_the_platform_can_store(tmp_path):
    answer = tmp_path / "software.json"
    subprocess.run([sys.executable, installed.__file__, str(answer)], check=True)
    body = json.loads(answer.read_bytes())
    assert body == installed.describe()
    report = SoftwareReport.model_validate({**body, "seq": 1, "generation": 0})
    assert report.packages["pydantic"] == importlib.metadata.version("pydantic")
    assert report.to_core().python == body["python"]
