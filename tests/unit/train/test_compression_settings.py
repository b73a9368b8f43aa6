import pytest

from phalanx.errors import SpecInvalid
from phalanx.train.compression.auto import ROUNDS, Auto, choose
from phalanx.train.compression.settings import Compression
from phalanx.train.tuning import tuned

pytestmark = pytest.mark.unit


def test_a_name_or_a_mapping_says_it():
    assert Compression.parse("topk") == Compression(method="topk")
    assert Compression.parse({"method": "powersgd", "rank": 4}).rank == 4
    assert Compression.parse(False) == Compression()
    assert not Compression.parse("none").compresses


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("powersdg", "did you mean powersgd"),
        ({"method": "topk", "fracton": 0.1}, "did you mean fraction"),
        ({"method": "topk", "fraction": 0}, "above 0"),
        ({"method": "powersgd", "rank": 0}, "at least 1"),
        ({"method": "powersgd", "rank": True}, "at least 1"),
        ({"method": "powersgd", "start_step": -1}, "start_step"),
        ({"method": "auto", "candidates": ["auto"]}, "candidates"),
        ({"method": "auto", "candidates": []}, "at least one"),
        ({"method": "topk", "error_feedback": "yes"}, "true or false"),
    ],
)
def test_what_makes_no_sense_is_named(value, word):
    with pytest.raises(SpecInvalid, match=word):
        tuned({"compression": value}, {})


def test_a_less_faithful_method_has_to_be_clearly_faster():
    assert choose({"none": 1.0, "bf16": 0.99, "powersgd": 0.98}) == "none"
    assert choose({"none": 1.0, "bf16": 0.9, "powersgd": 0.89}) == "bf16"
    assert choose({"none": 1.0, "bf16": 0.6, "powersgd": 0.1}) == "powersgd"


def test_auto_takes_candidates_in_turn_and_a_saved_decision_stands():
    auto = Auto(("none", "bf16"), lambda method, medians: None)
    assert [auto.method(step) for step in range(4)] == ["none", "bf16", "none", "bf16"]
    again = Auto(("none", "bf16"), lambda method, medians: None)
    again.load_state_dict({"choice": "bf16", "medians": {"none": 2.0, "bf16": 1.0}})
    assert {again.method(step) for step in range(2 * ROUNDS)} == {"bf16"}
    again = Auto(("none", "fp16"), lambda method, medians: None)
    again.load_state_dict({"choice": "bf16", "medians": {}})
    assert again.choice is None, "what is no candidate any more is measured anew"
