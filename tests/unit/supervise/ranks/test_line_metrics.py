"""Reports of trials from the lines that their scripts print."""

from __future__ import annotations

import pytest

from phalanx.core.contract.records import ReportRecord, WarningRecord
from phalanx.core.contract.trial import TrialContract
from phalanx.core.telemetry.line_patterns import LinePattern, LineReader
from phalanx.supervise.ranks import line_metrics
from phalanx.supervise.ranks.line_metrics import OutputReports

pytestmark = pytest.mark.unit
EPOCHS = "epoch {epoch}: loss {loss}"


def reports(unit: str, patterns: list[str], *lines: str) -> list[tuple[int, float | str | None]]:
    reader = LineReader([LinePattern.parse(one) for one in patterns])
    made = OutputReports(TrialContract(study=1, unit=unit, objective="loss"))
    parsed = [one for one in map(reader.read, lines) if one is not None]
    found = [one for one in map(made.read, parsed) if one is not None]
    assert all(isinstance(one, ReportRecord) for one in found)
    return [(one.unit, one.value) for one in found if isinstance(one, ReportRecord)]


@pytest.mark.parametrize(
    ("unit", "patterns", "lines", "expected"),
    [
        ("epoch", [EPOCHS], ["epoch 1: loss 3", "epoch 2: loss 2"], [(1, 3.0), (2, 2.0)]),
        ("epoch", [EPOCHS], ["epoch 0: loss 3", "epoch 1: loss 2"], [(1, 3.0), (2, 2.0)]),
        (
            "epoch", ["epoch {epoch}", "loss {loss}"],
            ["epoch 4", "loss 3", "loss 2", "epoch 5", "loss 1"], [(4, 3.0), (5, 1.0)],
        ),
        ("epoch", ["loss {loss}"], ["loss 3", "nothing", "loss 2"], [(1, 3.0), (2, 2.0)]),
        (
            "step", ["step {step} loss {loss}"],
            ["step 10 loss 3", "step 5 loss 9", "step 20 loss 2"], [(10, 3.0), (20, 2.0)],
        ),
        ("step", ["loss {loss}", "acc {acc}"], ["acc 1", "loss 3"], [(2, 3.0)]),
        ("token", ["tokens {token}", "loss {loss}"], ["loss 9", "tokens 4e3", "loss 3"], [(4000, 3.0)]),
        ("sample", ["json"], ['{"sample": 64, "loss": 3}', '{"sample": NaN, "loss": 2}'], [(64, 3.0)]),
        ("step", ["loss {loss}"], ["loss nan"], [(1, "nan")]),
    ],
)  # fmt: skip
def test_a_line_with_the_objective_is_a_report_at_its_unit(unit, patterns, lines, expected):
    assert reports(unit, patterns, *lines) == expected


def test_a_script_that_prints_without_end_makes_a_limited_number_of_reports(monkeypatch):
    monkeypatch.setattr(line_metrics, "MOST_REPORTS", 3)
    reader = LineReader([LinePattern.parse("loss {loss}")])
    made = OutputReports(TrialContract(study=1, unit="step", objective="loss"))
    found = [made.read(one) for _ in range(9) if (one := reader.read("loss 1"))]
    assert [type(one) for one in found[:4]] == [ReportRecord] * 3 + [WarningRecord]
    assert found[4:] == [None] * 5


def test_huge_numbers_are_no_units():
    assert reports("token", ["{token} {loss}"], "inf 1", "9e999 1", "1e300 1", "-3 1") == []
