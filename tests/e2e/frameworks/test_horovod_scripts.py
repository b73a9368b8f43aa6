"""Horovod scripts, unmodified: killed and recovered, with broadcast and fp16 as they call them."""

import pytest
import torch

from e2e.frameworks.foreign import committed, example, metric, needs, wait_committed
from e2e.platform.harness import kill

pytestmark = [pytest.mark.extras, pytest.mark.e2e, needs("horovod", "make horovod builds it")]


@pytest.mark.parametrize("resources", [{"slots_per_node": 3}, {"nodes": 2, "slots_per_node": 2}])
def test_killed_and_recovered(platform, resources):
    calm = platform.submit(example("horovod", "--epochs=10", resources=resources))
    usual = platform.wait_state(calm, "succeeded")
    spec = example("horovod", "--epochs=10", "--pause=1", resources=resources)
    job = platform.submit(spec)
    rank = platform.rank_pids(job)[2]
    wait_committed(platform, job)
    kill(rank)
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 1)
    world = resources.get("nodes", 1) * resources["slots_per_node"]
    said = platform.run("logs", job).stdout
    begun = [line for line in said.splitlines() if f"of {world} begins at epoch" in line]
    assert len(begun) == 2 * world
    losses = metric(platform, job, "loss")
    assert sorted(losses) == list(range(10))
    # Sums in fp16 (an epsilon of 1e-3) by three ranks and more come in any order.
    assert losses == pytest.approx(metric(platform, calm, "loss"), rel=1e-2)
    found = committed(view)
    assert found[0].manifest.step == 9
    here, there = (
        torch.load(one.path / "checkpoint.pt", weights_only=True)["model"]
        for one in (found[0], committed(usual)[0])
    )
    assert all(torch.allclose(here[name], there[name], atol=1e-2) for name in there)
