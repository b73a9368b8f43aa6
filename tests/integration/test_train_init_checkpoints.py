"""`pt.init(checkpoint_…)` for scripts outside the platform: copies, keys and retention by argument."""

import pytest

import phalanx.train as pt
from phalanx.checkpoint import remote
from phalanx.checkpoint.remote_store import open_store
from phalanx.core.training.checkpoints import Keep
from phalanx.errors import SpecInvalid
from phalanx.train.gang import context

pytestmark = pytest.mark.integration


def with_arguments(environ=None, **given):
    return context.with_checkpoints(context.read(environ or {}), given, environ or {})


def test_arguments_count_where_no_launcher_names_a_folder(tmp_path):
    info = with_arguments(
        {"K": "ab" * 32},
        dir=tmp_path,
        every="auto",
        keep={"last": 2},
        store="s3://bucket/run-7/",
        key_env="K",
    )
    assert info.checkpoint_dir == tmp_path
    assert (info.checkpoint.every.auto, info.checkpoint.keep) == (True, Keep(last=2))
    assert (info.checkpoint.store, len(info.keys)) == ("s3://bucket/run-7", 1)
    theirs = {"PHALANX_CHECKPOINT_DIR": "/launcher"}
    told = with_arguments(theirs, dir=tmp_path, store="s3://bucket/x")
    assert (str(told.checkpoint_dir), told.checkpoint.store) == ("/launcher", None)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"store": "s3://bucket/x"}, "checkpoint_dir"),
        ({"dir": "d", "store": "s3://key:secret@bucket/x"}, "checkpoint_store"),
        ({"dir": "d", "key_env": "NOT_SET"}, "checkpoint_key_env"),
        ({"dir": "d", "every": "soon"}, "checkpoint_every"),
        ({"dir": "d", "keep": {"first": 1}}, "checkpoint_keep"),
    ],
)
def test_a_mistake_is_named(given, name):
    with pytest.raises(SpecInvalid) as caught:
        with_arguments(**given)
    assert [problem.path for problem in caught.value.problems] == [name]


def test_a_key_never_stands_in_a_message(tmp_path):
    (tmp_path / "key").write_text("not-a-key-but-secret")
    with pytest.raises(SpecInvalid) as caught:
        with_arguments(dir="d", key_file=tmp_path / "key")
    assert "not-a-key-but-secret" not in str(caught.value)


@pytest.mark.leaves("a run ends its uploader when its process ends")
def test_a_script_of_its_own_gets_copies(tmp_path, monkeypatch):
    pytest.importorskip("obstore")
    for name in ("RANK", "WORLD_SIZE", "PHALANX_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    url = f"file://{tmp_path}/far"
    run = pt.init(
        checkpoint_dir=tmp_path / "near", checkpoint_every="2 steps", checkpoint_store=url
    )
    model = torch.nn.Linear(4, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=2)
    model, opt, loader = run.prepare(model, opt, loader)
    for _ in run.epochs(1):
        for (x,) in loader:
            model(x).sum().backward()
            opt.step()
            opt.zero_grad()
    found = remote.look(open_store(url, {})).good
    assert 6 in {manifest.step for manifest in found.values()}
