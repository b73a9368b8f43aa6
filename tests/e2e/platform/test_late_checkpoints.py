"""A job whose checkpoint folder is away when its ranks start waits for it, or fails."""

import shutil
from pathlib import Path

import pytest

from e2e.platform.harness import Platform, probe_spec
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.extras]
FLAGS = ("--epochs=8", "--samples=480")


@pytest.fixture(scope="module")
def calm(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an uninterrupted run of `FLAGS` ends with."""
    out = tmp_path_factory.mktemp("calm") / "probe"
    platform.wait_state(platform.submit(probe_spec(out, *FLAGS)), "succeeded")
    return out.read_text()


def paused_after_a_save(
    platform: Platform,
    out: Path,
    go: Path,
    spec: dict[str, object] | None = None,
    **checkpoint: object,
) -> str:
    spec = probe_spec(out, *FLAGS, "--step-s=0.1", f"--until={go}", **(spec or {}))
    spec["checkpoint"] = {**spec.get("checkpoint", {}), "keep": {"last": 3}, **checkpoint}
    job = platform.submit(spec)
    platform.wait_steps(15, out)
    platform.run("pause", job)
    platform.wait_state(job, "paused")
    return job


def test_a_mount_that_comes_late_costs_nothing(platform: Platform, tmp_path: Path, calm: str):
    out, go = tmp_path / "probe", tmp_path / "go"
    job = paused_after_a_save(platform, out, go)
    view = platform.show(job)
    store, away = Path(view.checkpoint_dir), tmp_path / "away"
    store.rename(away)
    assert platform.show(job).lineage.num_missing > 0
    assert platform.show(job).lineage.num_valid == 0
    go.touch()
    platform.run("resume", job)
    wait_until(
        lambda: (
            platform.show(job).pending_reason is not None
            and platform.show(job).pending_reason.code == "checkpoint_missing"
        ),
        "the job to wait for its checkpoints",
    )
    assert str(store) in platform.run("why", job).stdout
    assert str(store) in platform.run("show", job).stdout
    assert not store.exists()
    away.rename(store)
    view = platform.wait_state(job, "succeeded")
    assert view.lineage.redone == 0
    assert view.restarts == 0
    assert out.read_text() == calm


def test_a_folder_that_stays_away_fails_and_the_owner_may_begin_anew(
    platform: Platform, tmp_path: Path
):
    out, go = tmp_path / "probe", tmp_path / "go"
    job = paused_after_a_save(platform, out, go, wait="0.2s")
    store = Path(platform.show(job).checkpoint_dir)
    store.rename(tmp_path / "away")
    platform.run("resume", job)
    wait_until(
        lambda: any(
            one.cause == "checkpoint_missing" for one in platform.show(job).lineage.restarts
        ),
        "a start to fail",
    )
    platform.run("pause", job)
    platform.wait_state(job, "paused")
    go.touch()
    platform.run("resume", job, "--begin-anew")
    view = platform.wait_state(job, "succeeded")
    assert view.progress.checkpoint_step == view.progress.high_water_step
    assert "without the checkpoints that it has" in platform.run("show", job, "--events").stdout


def test_an_older_checkpoint_is_taken_after_the_wait_and_said(
    platform: Platform, tmp_path: Path, calm: str
):
    out, go = tmp_path / "probe", tmp_path / "go"
    job = paused_after_a_save(platform, out, go, wait="0.2s")
    store = Path(platform.show(job).checkpoint_dir)
    *_, older, newest = sorted(one for one in store.iterdir() if one.name.startswith("step-"))
    newest.rename(tmp_path / newest.name)
    platform.run("resume", job)
    said = f"training goes on from step {int(older.name.split('-')[1])}"
    wait_until(lambda: said in platform.run("show", job).stdout, "the warning")
    # It comes back while the job is behind it, and stays at least until the job has overtaken it.
    (tmp_path / newest.name).rename(newest)
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert view.lineage.redone > 0 and view.restarts == 0
    assert out.read_text() == calm


def test_a_job_that_waits_for_its_checkpoints_is_paused_at_once(platform: Platform, tmp_path: Path):
    """Its grace period, after which ranks are killed, is longer than this test may take."""
    out, go = tmp_path / "probe", tmp_path / "go"
    job = paused_after_a_save(platform, out, go, spec={"grace": "1h"})
    store = Path(platform.show(job).checkpoint_dir)
    store.rename(tmp_path / "away")
    platform.run("resume", job)
    wait_until(
        lambda: (
            platform.show(job).pending_reason is not None
            and platform.show(job).pending_reason.code == "checkpoint_missing"
        ),
        "the job to wait for its checkpoints",
    )
    platform.run("pause", job)
    view = platform.wait_state(job, "paused")
    assert view.restarts == 0 and not store.exists()
    (tmp_path / "away").rename(store)
    go.touch()
    platform.run("resume", job)
    assert platform.wait_state(job, "succeeded").lineage.redone == 0


@pytest.mark.proof
def test_with_a_fresh_database_the_first_job_does_not_take_checkpoints_of_the_lost_one(
    tmp_path: Path,
):
    """They come with a mount that was away when the control plane looked for numbers in use."""
    platform, flags = Platform(tmp_path), ("--epochs=2", "--samples=48")
    platform.up()
    first = platform.submit(probe_spec(tmp_path / "one", *flags))
    store = Path(platform.wait_state(first, "succeeded").checkpoint_dir)
    platform.down()
    for left in (platform.home / "db", platform.home / "jobs"):
        shutil.rmtree(left)
    kept = {one.name for one in store.iterdir()}
    store.rename(tmp_path / "away")
    platform.up()
    try:
        (tmp_path / "away").rename(store)
        job = platform.submit(probe_spec(tmp_path / "two", *flags))
        view = platform.wait_state(job, "succeeded")
        assert (job, Path(view.checkpoint_dir)) == ("j-1", store)
        said = platform.run("show", job, "--events").stdout
    finally:
        platform.down()
    assert (tmp_path / "two").read_text() == (tmp_path / "one").read_text()
    steps = [Path(f"{tmp_path}/{one}.steps").read_text().splitlines() for one in ("one", "two")]
    assert len(steps[0]) == len(steps[1]) > 1, "the second job has trained from step 0"
    assert "neither used nor deleted" in said and "--continue" in said
    assert kept <= {one.name for one in store.iterdir()}
