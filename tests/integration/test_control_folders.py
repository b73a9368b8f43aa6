"""A job does not begin with the checkpoint folder of another one unless its owner wants that."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from integration.rig import Rig, spec
from phalanx.errors import SpecInvalid
from phalanx.schemas.api.jobs import SubmitRequest

pytestmark = pytest.mark.integration


def submit(rig: Rig, cwd: Path, **checkpoint: Any) -> int:
    body = spec(checkpoint={"directory": "out", **checkpoint})
    request = SubmitRequest(spec=body, kind="run", caller_cwd=str(cwd), caller_env={}, owner="ada")
    job = rig.client.submit(request).job
    assert job is not None
    return job.num


def end(rig: Rig, num: int) -> None:
    rig.client.stop(num, goal="cancel")
    rig.turn(1)
    assert rig.job(num).is_terminal


def fill(cwd: Path) -> None:
    (cwd / "out").mkdir()
    (cwd / "out" / "state.bin").write_bytes(b"done")


def test_a_folder_with_files_is_refused_unless_the_job_continues(rig: Rig, tmp_path: Path) -> None:
    first = submit(rig, tmp_path)
    end(rig, first)
    (tmp_path / "out").mkdir()
    end(rig, submit(rig, tmp_path))  # an empty folder holds no state
    (tmp_path / "out" / "state.bin").write_bytes(b"done")
    with pytest.raises(SpecInvalid, match=r"out is not empty: j-2 \(cancelled\)") as refused:
        submit(rig, tmp_path)
    assert "--continue" in str(refused.value.hint)
    assert submit(rig, tmp_path, **{"continue": True}) == 3
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["state.bin"]


def test_a_folder_of_a_job_that_lives_is_refused(rig: Rig, tmp_path: Path) -> None:
    """Even where that job has not written a file yet, and where another path leads to the folder."""
    first = submit(rig, tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    for cwd in (tmp_path, tmp_path / "link"):
        with pytest.raises(SpecInvalid, match="folder of j-1, which has not ended"):
            submit(rig, cwd, **{"continue": True})
    assert submit(rig, tmp_path, directory="other") == 2
    end(rig, first)
    assert submit(rig, tmp_path) == 3


def test_files_of_others_are_named_without_an_owner(rig: Rig, tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(SpecInvalid, match=r"out is not empty \(to begin"):
        submit(rig, tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(SpecInvalid, match="file is not empty"):
        submit(rig, tmp_path, directory="file")


def test_a_paused_job_goes_on_with_its_own_folder(rig: Rig, tmp_path: Path) -> None:
    num = submit(rig, tmp_path)
    rig.client.stop(num, goal="pause")
    fill(tmp_path)
    rig.client.resume(num)
    rig.turn(1)
    assert rig.job(num).state == "starting"


def test_an_archive_with_a_filled_folder_is_refused(rig: Rig, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("train.py", "out/state.bin"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"done"))
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    rig.client.put_code(digest, packed.getvalue())
    for checkpoint, refused in (
        ({"directory": "out"}, True),
        ({"directory": "out/deep"}, False),
        ({"directory": "ou"}, False),
        ({"directory": "out", "continue": True}, False),
    ):
        request = SubmitRequest(spec=spec(checkpoint=checkpoint), code=digest)
        if refused:
            with pytest.raises(SpecInvalid, match="has files in this folder"):
                rig.client.submit(request)
        else:
            rig.client.submit(request)
