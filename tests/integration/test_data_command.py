"""`python -m phalanx.train.data.readers`, and readers under the library's own loader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.train.programs import data as command

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number in range(6):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    return tmp_path / "data"


def test_index_then_verify_as_a_child_process(folder: Path) -> None:
    def run(verb: str) -> tuple[int, dict[str, object]]:
        done = subprocess.run(
            [sys.executable, "-m", "phalanx.train.programs.data", verb, str(folder), "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not done.stderr
        return done.returncode, json.loads(done.stdout)

    code, about = run("index")
    assert (code, about["num_samples"], about["classes"]) == (0, 6, {"a": 3, "b": 3})
    (folder / "a/2.png").write_bytes(b"not what it was")
    code, found = run("verify")
    assert (code, found["ok"]) == (100, False)
    assert [row["file"] for row in found["faults"]] == ["a/2.png"]  # type: ignore[attr-defined]
    assert found["fingerprint"] == about["fingerprint"]


def test_an_object_store_as_the_place_of_shards_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["pack", str(folder), "s3://bucket/shards"]) == 1
    said = capsys.readouterr().err
    assert "shards are packed into a folder, and s3://bucket/shards is none" in said
    assert "rclone copy" in said
    assert not (tmp_path / "s3:").exists()


def test_what_people_see(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["verify", str(folder)]) == 102
    assert "has no index" in capsys.readouterr().err
    assert command.main(["index", str(tmp_path / "none")]) == 102
    assert command.main(["index"]) == 1
    capsys.readouterr()
    assert command.main(["index", str(folder), "--out", str(tmp_path / "elsewhere")]) == 0
    shown = capsys.readouterr().out
    assert "images: 6 samples in 6 files" in shown and "2 classes of 3 to 3 samples" in shown
    assert not (folder / "INDEX.json").exists()
    assert command.main(["verify", str(folder), "--index", str(tmp_path / "elsewhere")]) == 0
    assert "all files are as indexed" in capsys.readouterr().out
    ranks = ["--ranks", "4", "--batch-size", "1", "--index", str(tmp_path / "elsewhere")]
    assert command.main(["verify", str(folder), *ranks]) == 0
    assert "4 ranks of 1 to 2 samples (largest 1.33x the mean)" in capsys.readouterr().out
    assert command.main(["verify", str(folder), *ranks, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["ranks"] == [2, 2, 1, 1] and about["skew"]["classes"]["largest_to_mean"] == 1.0
    (folder / "a/2.png").unlink()
    assert command.main(["verify", str(folder), "--index", str(tmp_path / "elsewhere")]) == 100
    assert "a/2.png: is missing" in capsys.readouterr().out


def test_the_index_command_needs_no_torch() -> None:
    code = "import sys, phalanx.train.programs.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_do_not_depend_on_workers(folder: Path, num_workers: int) -> None:
    from phalanx.train.readers import ImageFolder

    loader = torch.utils.data.DataLoader(
        ImageFolder(folder),
        batch_size=4,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    images, labels = zip(*loader, strict=True)
    assert torch.cat(labels).tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.cat(images)[:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
