import pytest

from phalanx.errors import SpecInvalid
from phalanx.train.numerics.compression.method_choice import (
    LEAST,
    MOST,
    MOST_OF_SHORT,
    FastestMethod,
    choose,
    remaining_candidates,
)
from phalanx.train.settings import CompressionSettings, parse

pytestmark = pytest.mark.unit


def test_a_name_or_a_mapping_says_it():
    assert CompressionSettings.parse("topk") == CompressionSettings(method="topk")
    assert CompressionSettings.parse({"method": "powersgd", "rank": 4}).rank == 4
    assert CompressionSettings.parse(False) == CompressionSettings()
    assert not CompressionSettings.parse("none").compresses


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
        parse({"compression": value})


def test_a_less_faithful_method_has_to_be_clearly_faster():
    assert choose({"none": 1.0, "bf16": 0.995, "powersgd": 0.985}) == "none"
    assert choose({"none": 1.0, "bf16": 0.9, "powersgd": 0.89}) == "bf16"
    assert choose({"none": 1.0, "bf16": 0.6, "powersgd": 0.1}) == "powersgd"


def test_a_candidate_leaves_the_race_when_noise_cannot_explain_it():
    medians = {"none": 1.4, "bf16": 1.1, "powersgd": 1.0}
    assert remaining_candidates({**medians, "none": 1.6}, LEAST) == ("bf16", "powersgd")
    assert remaining_candidates(medians, LEAST) == ("none", "bf16", "powersgd")
    assert remaining_candidates(medians, 6) == ("bf16", "powersgd")
    assert remaining_candidates(medians, MOST) == ("powersgd",), "long steps: it is time to decide"
    short = {name: took / 100 for name, took in medians.items()}
    assert remaining_candidates(short, MOST) == ("bf16", "powersgd")
    assert remaining_candidates(short, MOST_OF_SHORT) == ("powersgd",)


class Race:
    """An auto whose steps take what is said, alone in its gang."""

    def __init__(self, took, monkeypatch):
        monkeypatch.setattr("torch.distributed.all_reduce", lambda row, op: None)
        self.took, self.now, self.steps, self.told = took, 0.0, [], []
        told = lambda method, medians: self.told.append((method, dict(medians)))  # noqa: E731
        self.auto = FastestMethod(tuple(took), told, clock=lambda: self.now)

    def run(self, steps):
        for _ in range(steps):
            self.steps.append(self.auto.method)
            self.now += self.took[self.auto.method]
            self.auto.settle()
        return self


def test_auto_takes_candidates_in_turn_and_drops_the_slow_ones_first(monkeypatch):
    race = Race({"none": 8.0, "bf16": 1.125, "powersgd": 1.0}, monkeypatch).run(60)
    assert race.steps[:6] == ["none", "bf16", "powersgd"] * 2
    assert race.steps.count("none") == 1 + LEAST, "one to warm up, and no more than it takes"
    assert race.steps.count("bf16") == 1 + MOST
    assert race.told == [("powersgd", {"none": 8.0, "bf16": 1.125, "powersgd": 1.0})]
    assert set(race.steps[-10:]) == {"powersgd"}


def test_a_saved_decision_stands():
    again = FastestMethod(("none", "bf16"), lambda method, medians: None)
    again.load_state_dict({"choice": "bf16", "medians": {"none": 2.0, "bf16": 1.0}})
    assert again.method == "bf16"
    again.settle()
    assert again.choice == "bf16"
    again = FastestMethod(("none", "fp16"), lambda method, medians: None)
    again.load_state_dict({"choice": "bf16", "medians": {}})
    assert again.choice is None, "what is no candidate any more is measured anew"
