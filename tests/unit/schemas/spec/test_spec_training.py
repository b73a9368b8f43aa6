"""The section `training` says what it is told, and agrees with what the library accepts."""

import pytest

from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.document import validate_spec
from phalanx.schemas.spec.training import Training
from phalanx.train import settings

pytestmark = pytest.mark.unit


def test_only_what_is_given_travels():
    spec = validate_spec({"run": "x", "training": {"on_spike": False, "precision": "bf16"}})
    assert spec.training.given() == {"on_spike": "off", "precision": "bf16"}
    assert validate_spec({"run": "x"}).training.given() == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [("precision", "fp8"), ("on_spike", "leap"), ("max_micro_batch", 0), ("clip", -1), ("x", 1)],
)
def test_what_makes_no_sense_is_refused_at_submit(key, value):
    with pytest.raises(SpecInvalid, match=f"training.{key}"):
        validate_spec({"run": "x", "training": {key: value}})


def test_the_library_knows_every_field():
    names = {field.name for field in settings.fields(settings.RunOptions)}
    assert set(Training.model_fields) - names == {"network"}
    assert names - set(Training.model_fields) == {"seed", "exact", "ddp", "fsdp", "tp_plan"}


def test_the_library_names_every_problem_at_once():
    with pytest.raises(SpecInvalid) as caught:
        settings.parse({"precision": "fp8", "warmup_steps": -1, "max_micro_bach": 3})
    text = str(caught.value)
    assert "precision: must be fp32, bf16 or fp16" in text and "warmup_steps" in text
    assert "did you mean max_micro_batch?" in text


def test_the_spec_stands_over_the_script():
    made = settings.with_spec(
        settings.parse({"precision": "fp16", "warmup_steps": 3}), {"precision": "bf16"}
    )
    assert (made.precision, made.warmup_steps) == ("bf16", 3)
