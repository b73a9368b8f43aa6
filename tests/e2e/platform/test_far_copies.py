"""A job whose checkpoints are encrypted and copied to S3, from the spec to the command line."""

import shutil
from pathlib import Path

import pytest

from e2e.platform.harness import Platform, probe_spec
from phalanx.kit.text import random_hex
from support.s3 import KEY, SECRET, needs_s3, s3_server

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.extras,
    needs_s3,
]
pytest.importorskip("obstore")
pytest.importorskip("cryptography")
CKPT_KEY = random_hex(64)


def test_a_job_loses_its_disk_and_goes_on_from_s3_encrypted(platform: Platform, tmp_path: Path):
    secrets = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "CKPT_KEY": CKPT_KEY}
    with s3_server(tmp_path / "s3") as server:
        far = {"AWS_ENDPOINT_URL": server.endpoint, "AWS_REGION": "us-east-1"}
        platform.env |= {**secrets, **far}
        try:
            job = _lose_the_disk(platform, tmp_path, list(secrets), far)
            _look(platform, job, tmp_path)
        finally:
            for name in (*secrets, *far):
                del platform.env[name]
    _nothing_was_told(platform)


def _lose_the_disk(platform: Platform, tmp_path: Path, secrets: list[str], far: dict) -> str:
    out, go = tmp_path / "probe", tmp_path / "go"
    spec = probe_spec(out, "--epochs=4", "--samples=160", "--step-s=0.2", f"--until={go}", ranks=2)
    spec["env"] |= far
    spec["checkpoint"] = {
        "every": "10 steps",
        "store": "s3://bucket/ckpt",
        "encryption": {"key_env": "CKPT_KEY"},
        "keep": {"last": 3},
    }
    spec["secrets"] = secrets
    with pytest.raises(AssertionError, match="project default has no such secret"):
        platform.submit(spec)
    platform.run("secrets", "set", *secrets)
    listed = platform.run("secrets", "ls").stdout.splitlines()[1:]
    assert [line.split()[0] for line in listed] == sorted(secrets)
    job = platform.submit(spec)
    platform.wait_steps(12, out)
    platform.run("pause", job)
    step = platform.wait_state(job, "paused").progress.checkpoint_step
    folder = Path(platform.show(job).checkpoint_dir)
    assert list(folder.glob("step-*"))
    shutil.rmtree(folder)
    go.touch()
    platform.run("resume", job)
    view = platform.wait_state(job, "succeeded")
    assert (view.lineage.missed, view.lineage.duplicated, view.lineage.redone) == (0, 0, 0)
    assert 0 < step < view.progress.step == 40
    return job


def _look(platform: Platform, job: str, tmp_path: Path) -> None:
    url = f"s3://bucket/ckpt/default/{job}"
    assert f"copies: phalanx checkpoints list {url}" in platform.run("checkpoints", job).stderr
    listed = platform.run("checkpoints", "list", url).stdout.splitlines()
    names = [line.split()[-2].rpartition("/")[2] for line in listed[1:]]
    assert len(names) == 3
    assert f"{url}/{names[0]}" in listed[1]
    for place in (url, job):
        assert names[0] in platform.run("checkpoints", "show", place).stdout
        verified = platform.run("checkpoints", "verify", place, "--key-env", "CKPT_KEY").stdout
        assert verified.count(": valid") == 3
    assert platform.run("checkpoints", "scrub", url).stdout.count(": valid") == 3

    weights = tmp_path / "model.safetensors"
    closed = platform.run("checkpoints", "export", url, weights, check=False)
    assert closed.returncode == 1
    assert "is encrypted with key" in closed.stderr
    assert "--key-env" in closed.stderr
    platform.run("checkpoints", "export", url, weights, "--key-env", "CKPT_KEY")
    assert weights.stat().st_size > 32 * 96 * 4

    (tmp_path / "other").write_text("11" * 32)
    wrong = platform.run(
        "checkpoints", "verify", url, "--key-file", tmp_path / "other", check=False
    )
    assert wrong.returncode == 1
    assert "is encrypted with key" in wrong.stdout

    platform.run("checkpoints", "rm", f"{url}/{names[1]}")
    platform.run("checkpoints", "rm", f"{url}/{names[2]}")
    spared = platform.run("checkpoints", "rm", f"{url}/{names[0]}", check=False)
    assert "is the last valid checkpoint" in spared.stderr
    data = next(file for file in (tmp_path / "s3").rglob("*.tensors"))
    data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))
    bad = platform.run("checkpoints", "verify", url, check=False)
    assert (bad.returncode, "do not match their digest" in bad.stdout) == (1, True)


def _nothing_was_told(platform: Platform) -> None:
    """The values are in no file of the home: the database has them encrypted."""
    needles = [SECRET.encode(), CKPT_KEY.encode()]
    kept = [
        str(file.relative_to(platform.home))
        for file in platform.home.rglob("*")
        if file.is_file() and any(needle in file.read_bytes() for needle in needles)
    ]
    assert kept == []
