"""Trees of JAX in our files: what is taken, what comes back, and what is refused. One process."""

import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from phalanx import checkpoint
from phalanx.errors import (
    ParamsRejected,
    PermissionDenied,
    RestoreMismatch,
    SpecInvalid,
    TrainingError,
    UserError,
)

jax = pytest.importorskip("jax", reason="needs JAX: make test-extras installs it")

pytestmark = [pytest.mark.extras, pytest.mark.integration]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "PHALANX_CHECKPOINT_DIR", "PHALANX_REPORT_FILE"):
        monkeypatch.delenv(name, raising=False)


def begun(tmp_path, **given):
    import phalanx.train.frameworks.jax as pj

    return pj.init(checkpoint_dir=tmp_path / "store", **given)


def tree(scale):
    jnp = jax.numpy
    return {
        "w": jnp.arange(12, dtype=jnp.float32).reshape(3, 4) * scale,
        "half": jnp.ones((5,), jnp.bfloat16) * scale,
        "empty": jnp.zeros((0, 3)),
        "scalar": jnp.float32(scale),
        "key": jax.random.key(scale),
        "host": np.arange(4) * scale,
        "plain": [scale, 0.5, "text", None, float("inf"), True],
        "tuple": (jnp.array([scale]),),
    }


def same(one, other):
    flat = [jax.tree.leaves(each, is_leaf=lambda leaf: leaf is None) for each in (one, other)]
    for a, b in zip(*flat, strict=True):
        if isinstance(a, jax.Array) and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if isinstance(a, jax.Array | np.ndarray):
            assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        else:
            assert a == b and type(a) is type(b)


def test_a_tree_comes_back_bit_for_bit(tmp_path):
    run = begun(tmp_path, checkpoint_every="2 steps")
    for step in run.steps(3):
        run.log(loss=jax.numpy.float32(step))
        run.commit(tree(step + 1))
    found = checkpoint.list_checkpoints(tmp_path / "store")
    assert [one.manifest.step for one in found] == [3, 2]
    assert found[0].manifest.metrics == {"loss": 2.0}
    run = begun(tmp_path)
    back = run.restore(tree(0))
    same(back, tree(3))
    assert run.step == 3
    assert list(run.steps(3)) == []
    assert len(checkpoint.list_checkpoints(tmp_path / "store")) == 2  # nothing new to save


def test_a_tree_of_another_form_is_refused_by_name(tmp_path):
    run = begun(tmp_path)
    for _ in run.steps(1):
        run.commit({"a": jax.numpy.zeros(3), "b": 1})
    for other, why in (
        ({"a": jax.numpy.zeros(4), "b": 1}, r"\['a'\] has shape \[4\], the checkpoint has \[3\]"),
        ({"a": jax.numpy.zeros(3, int), "b": 1}, "the checkpoint has float32"),
        ({"a": jax.numpy.zeros(3), "c": 1}, "is missing in the checkpoint"),
        ({"a": jax.numpy.zeros(3), "b": jax.numpy.zeros(1)}, "is an array on one side only"),
        ({"a": jax.random.key(0), "b": 1}, "the checkpoint has None"),
    ):
        with pytest.raises(RestoreMismatch, match=why):
            begun(tmp_path).restore(other)


def test_a_trial_reports_and_has_its_params(tmp_path, monkeypatch):
    settings = {"STUDY": "1", "PARAMS": '{"lr": 0.5}', "TRIAL_UNIT": "step", "TRIAL_UNTIL": "1"}
    for name, value in {**settings, "TRIAL_OBJECTIVE": "loss"}.items():
        monkeypatch.setenv(f"PHALANX_{name}", value)
    run = begun(tmp_path)
    found = []
    monkeypatch.setattr(run._trial, "_report", SimpleNamespace(write=found.append))
    for step in run.steps(2):
        run.report(loss=jax.numpy.float32(run.params.lr + step))
        run.commit(tree(step + 1))
    # It cannot pause, so no report waits for a checkpoint.
    assert [(one.unit, one.value, one.final) for one in found] == [(1, 0.5, False), (2, 1.5, False)]
    with pytest.raises(ParamsRejected, match="too small"):
        run.reject("too small")


def test_mistakes_are_said(tmp_path, monkeypatch):
    run = begun(tmp_path)
    run.commit({"f": object()})
    with pytest.raises(TrainingError, match=r"\['f'\] is a object, which a checkpoint cannot hold"):
        run.checkpoint()
    with pytest.raises(UserError, match="step 0 was not committed"):
        list(begun(tmp_path).steps(2))
    with pytest.raises(SpecInvalid, match="checkpoint_every"):
        begun(tmp_path, checkpoint_every="sometimes")
    with pytest.raises(SpecInvalid, match="checkpoint_compress"):
        begun(tmp_path, checkpoint_compress="lzma")


def test_the_learning_rate_follows_the_ranks_of_the_first_start(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_REFERENCE_WORLD", "4")
    run = begun(tmp_path, scale_lr="linear", warmup_steps=3)
    factors = []
    for step in run.steps(2):
        factors.append(run.lr_factor)
        run.commit(tree(step + 1))
    again = begun(tmp_path, scale_lr="linear", warmup_steps=3)
    again.restore(tree(0))
    for step in again.steps(5):
        factors.append(again.lr_factor)
        again.commit(tree(step + 1))
    assert factors == [1.0, 2.0, 3.0, 4.0, 4.0]
    # The spec overrides the script.
    monkeypatch.setenv("PHALANX_TRAINING", '{"scale_lr": "sqrt"}')
    assert begun(tmp_path / "b", scale_lr="linear").lr_factor == 2.0
    monkeypatch.delenv("PHALANX_TRAINING")
    assert begun(tmp_path / "c").lr_factor == 1.0
    with pytest.raises(SpecInvalid, match="scale_lr: must be one of none, linear, sqrt"):
        begun(tmp_path / "d", scale_lr="twice", warmup_steps=-1)


def test_trees_are_compressed_encrypted_and_copied_to_a_store(tmp_path, monkeypatch):
    pytest.importorskip("obstore")
    monkeypatch.setenv("TREE_KEY", bytes(range(32)).hex())
    options = {
        "checkpoint_compress": "zstd",
        "checkpoint_key_env": "TREE_KEY",
        "checkpoint_store": f"file://{tmp_path}/far",
        "checkpoint_every": "2 steps",
    }
    run = begun(tmp_path, **options)
    for step in run.steps(3):
        run.commit(tree(step + 1))
    (newest, *_) = found = checkpoint.list_checkpoints(tmp_path / "store")
    assert newest.manifest.encryption is not None
    far = {path.parent.name for path in (tmp_path / "far").glob("*/MANIFEST.json")}
    assert far == {one.manifest.name for one in found}
    shutil.rmtree(tmp_path / "store")
    back = begun(tmp_path, **options).restore(tree(0))
    same(back, tree(3))
    with pytest.raises(PermissionDenied):
        begun(tmp_path).restore(tree(0))


def test_a_full_disk_costs_a_warning_and_no_training(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CHECKPOINT_WAIT", "0s")
    (tmp_path / "store").write_text("in the way")
    run = begun(tmp_path, checkpoint_every="1 steps")
    run._saver._committer._report = said = Said()
    run.restore = lambda like: like
    for _ in run.steps(2):
        run.commit({"a": jax.numpy.zeros(3)})
    assert run.step == 2
    # Two steps, and the last save once more at the end.
    assert sum("could not be saved" in one for one in said.warnings) == 3


def test_the_last_save_is_tried_again_until_the_disk_takes_it(tmp_path, monkeypatch):
    from phalanx.train.frameworks.jax import saving

    blocked = tmp_path / "store"
    blocked.write_text("in the way")
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            blocked.unlink()

    monkeypatch.setattr(saving, "LastSave", partial(saving.LastSave, pause=pause))
    run = begun(tmp_path)
    run.restore = lambda like: like
    for _ in run.steps(2):
        run.commit({"a": jax.numpy.zeros(3)})
    assert pauses == [1.0, 2.0, 4.0]
    (only,) = checkpoint.list_checkpoints(blocked)
    assert (only.manifest.step, only.manifest.why) == (2, "final")


class Said:
    def __init__(self):
        self.warnings = []

    def write(self, record):
        if record.kind == "warn":
            self.warnings.append(record.message)
