"""The learning rate's factor by the ranks of the first start: applied, kept, and not applied later."""

from types import SimpleNamespace

import pytest
import torch

from phalanx.train import settings
from phalanx.train.data.shares import Shares
from phalanx.train.step.policies import TrainingPolicies

pytestmark = pytest.mark.unit


class Scale:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def policies(ranks, step=0, **options):
    components = SimpleNamespace(
        info=SimpleNamespace(reference_world=ranks),
        options=settings.parse(options),
        layout=SimpleNamespace(tp=1, pp=1, num_places=ranks),
    )
    progress = SimpleNamespace(step=step)
    return TrainingPolicies(components, progress, None, Scale(), Shares(), None)


def rate(one, step=None):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    if step is not None:
        one._progress.step = step
    with one.rate(optimizer):
        found = optimizer.param_groups[0]["lr"]
    assert optimizer.param_groups[0]["lr"] == 0.1
    return found


PLAN = SimpleNamespace(step_batch=64)


@pytest.mark.parametrize(("scale", "times"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_rate_follows_the_ranks_of_the_first_start(scale, times):
    one = policies(4, scale_lr=scale)
    one.follow(PLAN)
    assert rate(one) == pytest.approx(0.1 * times)


def test_warm_up_leads_to_it():
    one = policies(4, scale_lr="linear", warmup_steps=10)
    one.follow(PLAN)
    assert [round(rate(one, step), 3) for step in (0, 5, 10)] == [0.1, 0.25, 0.4]


@pytest.mark.parametrize(("ranks", "scale"), [(2, "linear"), (4, "none")])
def test_a_resume_keeps_the_factor_of_the_first_start(ranks, scale):
    first = policies(4, scale_lr="linear")
    first.follow(PLAN)
    later = policies(ranks, step=7, scale_lr=scale)
    later.load_state_dict(first.state_dict())
    later.follow(PLAN)
    assert rate(later) == pytest.approx(0.4)


def test_a_job_that_began_without_it_goes_on_without_it():
    first = policies(4)
    first.follow(PLAN)
    saved = first.state_dict()
    for state in (saved, {key: saved[key] for key in saved if key != "world_factor"}, {}):
        later = policies(4, step=7, scale_lr="linear")
        later.load_state_dict(state)
        later.follow(PLAN)
        assert rate(later) == pytest.approx(0.1)
