"""`sweep FILE --dry-run`: what is said of the method that `auto` chooses."""

from __future__ import annotations

import pytest

from phalanx.cli.verbs.studies.sweep import _show_check
from phalanx.core.search.space import ChoiceParameter, FloatParameter, Space
from phalanx.schemas.api.studies import StudyCheckView
from phalanx.search import methods

pytestmark = pytest.mark.unit
FEW = Space({"lr": FloatParameter(0.0, 1.0)})
MANY = Space({f"x{number}": FloatParameter(0.0, 1.0) for number in range(13)})
CONDITIONAL = Space(
    {"kind": ChoiceParameter(("a", "b")), "lr": FloatParameter(0.0, 1.0, when="kind == 'a'")}
)


@pytest.mark.parametrize(
    ("space", "then"),
    [
        (FEW, "Bayesian optimisation (GP-UCB), after 300 trials TPE"),
        (MANY, "TPE"),
        (CONDITIONAL, "TPE"),
    ],
    ids=["few", "many", "conditional"],
)
def test_a_dry_run_says_which_methods_auto_uses(
    space: Space, then: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = methods.describe("auto", space).removeprefix("method auto: ")
    view = StudyCheckView(
        spec={}, method="auto", method_reason=reason, max_trials=40, parallel=4, slots_per_trial=2
    )
    _show_check(view, json=False)
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    facts = {one[0]: one[1] for one in lines if len(one) == 2}
    assert facts["method"] == f"auto (10 random trials, then {then})"
    assert facts["slots"] == "2 for each trial"
