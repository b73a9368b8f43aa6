"""A run that evaluates in the middle of a pass says so, and is given the time for it."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt
from phalanx.core.gang.stalls import GRACE_S, StallPolicy, StallWatch
from phalanx.supervise.ranks.records import GenerationRecords

pytestmark = pytest.mark.integration
POLICY = StallPolicy()


@pytest.mark.leaves("a run holds its report file until its process ends")
@pytest.mark.parametrize(
    ("through", "limit_s"), [("library", POLICY.validation_s), ("plain", GRACE_S)]
)
def test_evaluation_is_told_from_a_step_that_hangs(tmp_path, monkeypatch, through, limit_s):
    """The control evaluates by a plain loader, which nobody can see."""
    for name in ("RANK", "WORLD_SIZE", "PHALANX_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "report"
    monkeypatch.setenv("PHALANX_REPORT_FILE", str(file))
    watch = StallWatch(POLICY, 0.0)
    records = GenerationRecords(0, {0: file}, lambda make: None, watch)
    found = []

    def look():
        records.read()
        found.append((records.phase, watch.limit_s))

    run = pt.init()
    model = torch.nn.Linear(4, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=2)
    model, opt, loader = run.prepare(model, opt, loader)
    held_out = DataLoader(TensorDataset(torch.randn(4, 4)), batch_size=2)
    if through == "library":
        held_out = run.eval_loader(held_out)
    for _ in run.epochs(1):
        for at, (x,) in enumerate(loader):
            model(x).sum().backward()
            opt.step()
            opt.zero_grad()
            if at == 3:
                assert sum(len(batch[0]) for batch in held_out) == 4
                look()
            if at == 5:
                look()
    records.close()
    assert found[0] == ("evaluating" if through == "library" else "ready", limit_s)
    assert found[1] == ("ready", GRACE_S)
