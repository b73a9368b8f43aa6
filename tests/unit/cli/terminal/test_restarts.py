"""The table of restarts that `submit --dry-run` prints."""

from __future__ import annotations

import pytest
import yaml

from phalanx.cli.terminal.restarts import restart_table
from phalanx.core.reasons import Cause
from phalanx.schemas.spec.job import Recovery

pytestmark = pytest.mark.unit


def test_every_cause_has_a_line_and_the_whole_is_a_comment_of_yaml() -> None:
    table = restart_table(Recovery().to_core())
    rows = {line.split()[1]: line for line in table.splitlines()[1:]}
    assert set(rows) == {"cause", *(cause.value for cause in Cause)}
    said = "3, 8 if killed 1h00m 1s, doubling to 5m00s"
    assert " ".join(rows["rank_crash"].split()[2:]) == said
    assert rows["user_error"].split()[2:] == ["0", "-", "-"]
    assert rows["preempted"].split()[2:] == ["unlimited", "-", "none"]
    assert rows["node_lost"].split()[2] == "5", "its budget has no limit, a crash loop has one"
    assert yaml.safe_load(f"run: x\n{table}") == {"run": "x"}


def test_what_the_spec_says_is_in_the_table() -> None:
    spec = Recovery.model_validate(
        {
            "rank_crash": 7,
            "exit_codes": {33: "retry", 2: "fail"},
            "exceptions": {"ConnectionError": "retry", "Broken": "fail"},
        }
    )
    lines = restart_table(spec.to_core()).splitlines()
    assert next(one for one in lines if "rank_crash" in one).split()[2] == "7"
    assert lines[-4:] == [
        "# exit code 33: restarts as rank_crash",
        "# exit code 2: ends the job",
        "# ConnectionError: restarts as rank_crash",
        "# Broken: ends the job",
    ]
