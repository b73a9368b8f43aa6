"""Metrics in what scripts print."""

import pytest

from phalanx.core.telemetry.line_patterns import LinePattern, LineReader

pytestmark = pytest.mark.unit


def reader(*texts):
    return LineReader([LinePattern.parse(text) for text in texts])


def said(one, line):
    found = one.read(line)
    return None if found is None else (found.step, found.stepped, dict(found.values))


def test_a_pattern_lies_anywhere_and_blanks_are_blanks():
    one = reader("step {step}: loss {loss}")
    assert said(one, "[rank 0] step  12:\tloss 3.5e-1 (best)") == (12, True, {"loss": 0.35})
    assert said(one, "step 12: loss 0.3") == (12, False, {"loss": 0.3})
    assert said(one, "nothing of the kind") is None


def test_marks_of_expressions_are_plain_text():
    assert said(reader("(a+b)* = {x}"), "(a+b)* = -1.") == (1, True, {"x": -1.0})


def test_several_patterns_add_up_and_the_step_may_stand_on_another_line():
    one = reader("Epoch {epoch}/", "loss: {loss}", "accuracy: {val/acc}")
    assert said(one, "Epoch 3/5") == (3, True, {})
    line = "313/313 - 1s - accuracy: 0.91 - loss: 0.30"
    assert said(one, line) == (3, False, {"loss": 0.30, "val/acc": 0.91})
    assert said(one, "Epoch 4/5") == (4, True, {})


def test_lines_without_any_step_are_counted():
    one = reader("loss {loss}")
    assert [said(one, f"loss {n}")[0] for n in range(3)] == [1, 2, 3]


def test_a_count_goes_on_where_an_earlier_generation_ended():
    one = LineReader([LinePattern.parse("loss {loss}")], 400)
    assert [said(one, f"loss {n}")[:2] for n in range(2)] == [(401, True), (402, True)]
    assert one.read("loss 1").counted
    # A step that the script names is its own.
    named = LineReader([LinePattern.parse("step {step}")], 400)
    assert said(named, "step 7") == (7, True, {}) and not named.read("step 8").counted
    lines = LineReader([LinePattern.parse("json")], 400)
    assert [lines.read(line).step for line in ('{"loss": 1}', '{"step": 30}')] == [401, 30]


def test_lines_of_json():
    one = reader("json")
    line = '{"step": 4, "loss": 1.5, "name": "x", "ok": true, "deep": {"a": 1}}'
    assert said(one, line) == (4, True, {"loss": 1.5})
    for bad in ("{", "[1]", "{" * 5000, '{"a"', ""):
        assert said(one, bad) is None


def test_a_number_too_great_for_a_float_is_passed_over():
    one = reader("json")
    assert said(one, '{"step": 1, "loss": 2.5, "id": 1' + "0" * 400 + "}") == (
        1,
        True,
        {"loss": 2.5},
    )


def test_what_is_not_finite_is_said_in_words():
    assert said(reader("loss {loss}"), "loss nan") == (1, True, {"loss": "nan"})


def test_a_step_that_cannot_be_one_is_passed_over():
    one = reader("step {step} loss {loss}")
    assert said(one, "step nan loss 1")[0] == 0
    assert said(one, "step -3 loss 1")[0] == 0
    assert said(one, f"step {2**60} loss 1")[0] == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("loss", "names no metric"),
        ("{a}{b}", "without text between"),
        ("{a} {a}", "twice"),
        ("{a b}", "not a valid name of a metric"),
        ("{}", "not a valid name of a metric"),
        ("{a} }", "unmatched brace"),
    ],
)
def test_patterns_that_mean_nothing_are_refused(text, why):
    with pytest.raises(ValueError, match=why):
        LinePattern.parse(text)
