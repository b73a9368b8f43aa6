"""`phalanx doctor` looks at the disk of the checkpoints, which may be another one than that of the home."""

import os
import shutil
from collections import namedtuple

import pytest

from phalanx.cli.client import checkup
from phalanx.kit.units import format_size
from phalanx.schemas.home import HomeLayout

pytestmark = pytest.mark.unit
GIB = 2**30
Usage = namedtuple("Usage", "total used free")


def told(home):
    (found,) = [one for one in checkup.examine(home) if one.subject == "checkpoints"]
    return found


@pytest.mark.parametrize(
    ("free", "size", "verdict"),
    [(50, 10, "ok"), (39, 10, "warn"), (9, 10, "FAIL"), (0.5, 0, "FAIL"), (2, 0, "ok")],
)
def test_the_room_for_checkpoints_is_judged_by_the_largest(
    tmp_path, monkeypatch, free, size, verdict
):
    checkpoints = HomeLayout(tmp_path).checkpoints_dir
    checkpoints.mkdir(parents=True)
    asked = []

    def usage(path):
        asked.append(path)
        return Usage(100 * GIB, 0, round(free * GIB))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr(checkup, "_largest_checkpoint", lambda folder: size * GIB)
    found = told(tmp_path)
    assert found.verdict == verdict and checkpoints in asked
    assert (format_size(4 * size * GIB) in found.said) == (verdict == "warn")
    assert bool(found.remedy) == (verdict != "ok")


def test_a_folder_that_takes_no_checkpoints_is_named(tmp_path, monkeypatch):
    checkpoints = HomeLayout(tmp_path).checkpoints_dir
    checkpoints.write_text("in the way")
    assert told(tmp_path).verdict == "FAIL"
    checkpoints.unlink()
    checkpoints.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != checkpoints)
    found = told(tmp_path)
    assert (found.verdict, found.said) == ("FAIL", f"{checkpoints} is not writable")
