"""The query language: what terms mean, and the one message that marks a mistake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.experiments.query import FIELDS, MAX_TERMS, Comparison, Term, parse
from phalanx.errors import UserError

pytestmark = pytest.mark.unit
NOW = 1_700_000_000_000_000
EQUAL, HAS = Comparison.EQUAL, Comparison.HAS
DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("metric:val_acc>0.9", Term("metric", Comparison.ABOVE, (0.9,), "val_acc")),
        (
            "metric:max(val_acc)>=1e-3",
            Term("metric", Comparison.AT_LEAST, (1e-3,), "val_acc", "max"),
        ),
        ("metric:loss", Term("metric", HAS, (), "loss")),
        ('metric:"val acc">0.9', Term("metric", Comparison.ABOVE, (0.9,), "val acc")),
        ("param:lr<1e-3", Term("param", Comparison.BELOW, (1e-3,), "lr")),
        ("param:opt=adam,sgd*", Term("param", EQUAL, ("adam", "sgd*"), "opt")),
        ("params:opt!=adam", Term("param", Comparison.NOT_EQUAL, ("adam",), "opt")),
        ('param:note="a, b"', Term("param", EQUAL, ("a, b",), "note")),
        ("-tag:old", Term("tag", EQUAL, ("old",), negated=True)),
        ("state:Succeeded,failed", Term("state", EQUAL, ("succeeded", "failed"))),
        ("owner:ada", Term("user", EQUAL, ("ada",))),
        ("label:team=vision", Term("label", EQUAL, ("vision",), "team")),
        ("usd:>10", Term("usd", Comparison.ABOVE, (10.0,))),
        ("duration:>=1h30m", Term("duration", Comparison.AT_LEAST, (5400.0,))),
        ("since:7d", Term("since", EQUAL, (NOW - 7 * DAY_US,))),
        ("until:2023-11-01", Term("until", EQUAL, (1_698_796_800_000_000,))),
        ("job:j-3,12", Term("job", EQUAL, (3, 12))),
        ("study:s-4", Term("study", EQUAL, (4,))),
        ("bert", Term("name", EQUAL, ("*bert*",))),
    ],
)
def test_what_a_term_means(text: str, term: Term) -> None:
    assert parse(text, NOW) == (term,)


def test_terms_are_separated_by_blanks_and_all_kept_in_order() -> None:
    found = parse('  metric:val_acc>0.9  "two words" -state:failed ', NOW)
    assert [one.field for one in found] == ["metric", "name", "state"]
    assert found[1].values == ("*two words*",)
    assert parse("", NOW) == ()


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("tag:a metric:>0.9", 14, "the name of the metric is missing"),
        ("metric:acc>", 12, "a value is missing behind `>`"),
        ("metric:acc>high", 12, "'high' is not a number"),
        ("metric:acc>nan", 12, "must be finite"),
        ("metrik:acc>1", 1, "there is no field 'metrik'"),
        ("tag:", 5, "`tag:` needs a value"),
        ("tag:a,,b", 7, "a value is missing beside the comma"),
        ('tag:"a', 5, "this quote has no end"),
        ("state:done", 7, "there is no state 'done'"),
        ("state:>failed", 7, "`state` has no order"),
        ("since:soon", 7, "is not a duration such as 7d"),
        ("job:x", 5, "is no number of a job"),
        ("lr<0.1", 1, "a comparison needs a field"),
        ("-", 2, "`-` needs a term behind it"),
        ("label:team>3", 7, "a label is compared by = or !="),
        ("tag:a\x07", 6, "cannot be printed"),
    ],
)
def test_a_mistake_is_said_once_and_its_place_is_marked(text: str, at: int, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, NOW)
    first, line, mark = caught.value.message.splitlines()
    assert first.startswith(f"the query is wrong at character {at}: ")
    assert said in first
    assert line[2:] == text.replace("\x07", " ")
    assert mark == " " * (at + 1) + "^"


def test_the_mark_is_under_the_place_of_a_long_query_too() -> None:
    text = "tag:a " * 20 + "tag:b,,c"
    with pytest.raises(UserError) as caught:
        parse(text, NOW)
    _, line, mark = caught.value.message.splitlines()
    assert line[mark.index("^") - 1 : mark.index("^") + 1] == ",,"


def test_queries_are_bounded() -> None:
    with pytest.raises(UserError, match="more than 8000 characters"):
        parse("a" * 8001, NOW)
    with pytest.raises(UserError, match=f"more than {MAX_TERMS} terms"):
        parse("tag:a " * (MAX_TERMS + 1), NOW)
    with pytest.raises(UserError, match="more than 500 values"):
        parse("job:" + ",".join("1" * 501), NOW)


PIECES = st.sampled_from(
    [
        *(f"{one}:" for one in FIELDS),
        *'"<>=!(),-* ',
        "lr",
        "0.1",
        "7d",
        "max(",
        "running",
        "ä",
        "\0",
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_text_is_terms_or_one_error(text: str) -> None:
    try:
        found = parse(text, NOW)
    except UserError:
        return
    assert all(one.field in FIELDS for one in found)
