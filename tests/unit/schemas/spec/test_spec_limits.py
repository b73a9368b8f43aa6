"""Limits of what a spec, a pool file and a project file may hold: nothing in them costs much to read."""

from __future__ import annotations

import math

import pytest

from phalanx.core.telemetry.line_patterns import LinePattern
from phalanx.errors import SpecInvalid
from phalanx.kit.text import nearest
from phalanx.kit.units import parse_duration, parse_size
from phalanx.schemas.pools.pool_file import MAX_NODES, read_pools
from phalanx.schemas.pools.project_file import ProjectSpec, check_tree, lineage, read_projects
from phalanx.schemas.spec.document import MAX_PROBLEMS, read_yaml, validate_spec

pytestmark = pytest.mark.unit
HANG_GUARD = pytest.mark.timeout(60)
LONG = 16_000


def problems_of(changes) -> dict[str, str]:
    with pytest.raises(SpecInvalid) as caught:
        validate_spec({"run": "x", **changes})
    return {one.path: one.message for one in caught.value.problems}


@pytest.mark.parametrize(
    ("changes", "path", "says"),
    [
        ({"resources": {"nodes": "1..999999999999"}}, "resources.nodes", "at most 20000"),
        ({"resources": {"nodes": 999999999999}}, "resources.nodes", "at most 20000"),
        ({"resources": {"slots_per_node": 10**12}}, "resources.slots_per_node", "at most 4096"),
        ({"resources": {"memory": 2**80}}, "resources.memory", "less than 8 EiB"),
        ({"resources": {"memory": "9" * 400 + "TB"}}, "resources.memory", "write a size"),
        ({"array": ",".join(["0-99999"] * 2000)}, "array.indices", "at most 1000 indices in all"),
        ({"priority": 10**400}, "priority", "at most 100"),
        ({"grace": math.nan}, "grace", "at most 100 years"),
        ({"max_duration": math.inf}, "max_duration", "at most 100 years"),
        ({"max_duration": "9" * 40 + "w"}, "max_duration", "at most 100 years"),
        ({"checkpoint": {"every": math.nan}}, "checkpoint.every", "write a duration"),
        ({"stall": math.inf}, "stall.after", "at most 100 years"),
        ({"labels": {"a": 10**5000}}, "labels.a", "in quotes"),
        ({"env": {"A": "x" * 200_000}}, "env.A", "at most 128 KiB"),
        ({"run": ["x"] * 2000}, "run", "at most 1000 words"),
        ({"training": {"clip": math.nan}}, "training.clip", "finite"),
        ({"metrics": ["loss {loss}"] * 60}, "metrics", "at most 50"),
        ({"checkpoint": {"directory": "a\0b"}}, "checkpoint.directory", "NUL"),
    ],
)
def test_every_number_and_length_of_a_spec_has_a_limit(changes, path, says) -> None:
    problems = problems_of(changes)
    assert says in problems[path]
    assert len(str(problems)) < 2000


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e400, 4e9, "9" * 100])
def test_a_duration_is_finite(value) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(value)


def test_a_size_is_exact_and_fits_the_database() -> None:
    assert parse_size(str(2**53 + 1)) == 2**53 + 1
    with pytest.raises(ValueError, match="8 EiB"):
        parse_size(2**63)
    with pytest.raises(ValueError, match="8 EiB"):
        parse_size("99999999TiB")


@HANG_GUARD
@pytest.mark.parametrize(
    "field",
    [
        {"resources": {"nodes": "1.1" * (LONG // 3)}},
        {"resources": {"memory": "1" * LONG + "!"}},
        {"resources": {"cpus": "1." + "1" * LONG}},
        {"grace": "1s" * (LONG // 2)},
        {"checkpoint": {"every": " " * LONG + "x"}},
        {"schedule": {"cron": "* " * LONG}},
        {"name": "a" * LONG},
        {"training": {"strategy": "a" * LONG}},
        {"framework": "torc" * LONG},
        {"a" * LONG: 1},
        {"resources": {"a" * LONG: 1}},
    ],
)
def test_long_texts_are_refused_with_a_short_message(field) -> None:
    assert all(len(path) + len(said) < 1000 for path, said in problems_of(field).items())


def test_similar_words_are_looked_for_a_limited_number_of_times(monkeypatch) -> None:
    import difflib

    asked: list[str] = []
    real = difflib.get_close_matches
    monkeypatch.setattr(
        difflib,
        "get_close_matches",
        lambda word, *rest, **kw: asked.append(word) or real(word, *rest, **kw),
    )
    problems = problems_of({f"unknown{n}": 1 for n in range(5000)})
    assert "and 4950 more problems" in problems[""]
    assert len(asked) == MAX_PROBLEMS
    assert nearest("x" * LONG, ["x" * LONG]) is None
    assert nearest("pritority", ["priority"]) == "priority"
    assert len(asked) == MAX_PROBLEMS + 1


@HANG_GUARD
@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("{a}e{b}e{c}e{d}e{f}x", "1e" * 2048),
        ("{a}-{b}-{c}-{d}-{e}x", "1-" * 2048),
        ("{a} {b} {c} {d}x", " 1" * 2048),
        ("{a}  x", "1" + " " * 4095),
        (" {a}x", " " * 4096),
        ("{a}x", "1" * 4096),
        ("-{a}+{b}+{c}+{d}x", "-1+1" * 1024),
    ],
)
def test_no_pattern_makes_a_line_slow(pattern, line) -> None:
    """Backtracking over numbers takes more than a minute for some of these."""
    assert LinePattern.parse(pattern).read(line) == {}


def test_numbers_are_matched_whole() -> None:
    assert LinePattern.parse("step {step}. loss {loss}").read("step 3. loss 2.5.") == {
        "step": 3.0,
        "loss": 2.5,
    }
    assert LinePattern.parse("{x} of").read("-1.5e-3 of") == {"x": -0.0015}
    assert LinePattern.parse("lr {x}").read("lr .5e2") == {"x": 50.0}
    for text, why in (
        ("{a}1{b}", "digit right after"),
        ("a" * 2000 + "{x}", "more than 1000 characters"),
        (" ".join(f"{{a{n}}}" for n in range(60)), "more than 50 metrics"),
    ):
        with pytest.raises(ValueError, match=why):
            LinePattern.parse(text)


def pool(name: str, **entry):
    return {"name": name, "nodes": [{"name": "n", "slots": 1, **entry}]}


@HANG_GUARD
def test_a_pool_file_is_counted_before_it_is_expanded() -> None:
    """900 entries of 20,000 nodes: 18 million names."""
    pools = [pool(f"p{n}", count=MAX_NODES) for n in range(900)]
    with pytest.raises(SpecInvalid, match="at most 20000 nodes"):
        read_pools({"schema": 1, "pools": pools}, ["local"])
    with pytest.raises(SpecInvalid, match="at most 4096"):
        read_pools({"schema": 1, "pools": [pool("p", slots=10**12)]}, ["local"])
    for price in (math.nan, math.inf, 1e300):
        with pytest.raises(SpecInvalid, match="price"):
            read_pools({"schema": 1, "pools": [pool("p", price=price)]}, ["local"])


@HANG_GUARD
def test_the_tree_of_projects_is_checked_in_linear_time() -> None:
    chain = [ProjectSpec(name="p0")] + [
        ProjectSpec(name=f"p{n}", parent=f"p{n - 1}") for n in range(1, 20_000)
    ]
    assert check_tree(chain) == []
    assert len(lineage({one.name: one for one in chain}, "p19999")) == 20_000
    ring = [ProjectSpec(name=f"r{n}", parent=f"r{(n + 1) % 3}") for n in range(3)]
    tail = [ProjectSpec(name="t", parent="r0")]
    problems = check_tree([*tail, *ring])
    assert sorted(one.path for one in problems) == ["project r0", "project r1", "project r2"]
    with pytest.raises(SpecInvalid):
        read_projects({"schema": 1, "projects": [{"name": f"p{n}"} for n in range(1001)]})


def test_yaml_that_python_cannot_hold_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="too many digits"):
        read_yaml("a: " + "9" * 5000, "spec")
    with pytest.raises(SpecInvalid, match="nested too deep"):
        read_yaml("a: " + "[" * 100_000, "spec")
