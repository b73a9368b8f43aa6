"""Examples of other frameworks as jobs of a test."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx import checkpoint
from support.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def needs(module: str, how: str) -> pytest.MarkDecorator:
    """Skips where a module is not installed. It is not imported: that takes seconds, and the jobs do it."""
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"needs {module}: {how}")


def example(folder: str, *flags: str, file: str = "job.yaml", **spec: Any) -> dict[str, Any]:
    """The spec of an example, with other flags for its script."""
    found = yaml.safe_load((EXAMPLES / folder / file).read_text())
    command = found["run"].split(" --")[0]
    return {**found, "run": " ".join([command, *flags]), "workdir": str(EXAMPLES / folder), **spec}


def metric(platform: Any, job: str, name: str) -> dict[int, float]:
    """The values of a metric in the registry, by step."""
    with platform.client() as client:
        found = client.metrics(int(job.removeprefix("j-")), names=[name])
    return {
        step: value
        for series in found.series
        for step, value in zip(series.steps, series.values, strict=True)
        if value is not None
    }


def wait_committed(platform: Any, job: str) -> None:
    """Until a checkpoint of the job lies in its folder.

    Find whom to kill before: on a busy machine the job may be over before the control plane has answered.
    """
    store = Path(platform.show(job).checkpoint_dir)
    wait_until(lambda: any(store.glob("step-*/MANIFEST.json")), "a checkpoint")


def committed(view: Any) -> list[checkpoint.CommittedCheckpoint]:
    """The checkpoints of a job that has ended, newest first, every byte verified."""
    found = checkpoint.list_checkpoints(Path(view.checkpoint_dir))
    for one in found:
        checkpoint.verify(one.path)
    return found
