"""Following a study: each event is shown once over lost answers, and Ctrl-C leaves it running."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import typer

from phalanx.cli.client import follow as links
from phalanx.cli.verbs.studies.follow import StudyFollower
from phalanx.errors import ServerUnavailable
from phalanx.schemas.api.studies import StudyEventPage, StudyView, TrialPage, TrialView

pytestmark = pytest.mark.unit
AT = datetime(2026, 1, 1, tzinfo=UTC)
REASON = {"code": "x", "message": ""}
STUDY: dict[str, Any] = {
    "num": 3, "label": "s-3", "name": "lr", "project": "p", "owner": "ada", "state": "succeeded",
    "reason": REASON, "method": "random", "objective": {"metric": "loss", "goal": "minimize"},
    "max_trials": 3, "parallel": 2, "submitted_at": AT,
}  # fmt: skip


def event(seq: int, kind: str, trial: int | None, **data: Any) -> dict[str, Any]:
    return {
        "study": 3, "seq": seq, "at": AT, "kind": kind, "trial": trial, "state": "running",
        "reason": REASON, "data": data,
    }  # fmt: skip


EVENTS = [
    event(1, "suggested", 0, params={"lr": 0.125}),
    event(2, "trial_reported", 0, unit=1, value=0.5),
    event(3, "trial_reported", 1, unit=1, value=0.7),
    event(4, "trial_paused", 1),
    event(5, "trial_paused", 1),  # without a report since: it was moved while it waited
    event(6, "trial_reported", 0, unit=2, value=None),
    event(7, "trial_ended", 0),
    event(8, "trial_ended", 2),
]


def trial(number: int, status: str, **rest: Any) -> TrialView:
    plain = {"study": 3, "number": number, "label": f"s-3/{number}", "params": {}, **rest}
    return TrialView.model_validate({**plain, "origin": {"sampler": "x"}, "status": status})


ROWS = [
    trial(0, "diverged", reason="not_finite: loss is not finite at unit 2"),
    trial(1, "stopped", unit=1, value=0.7, reason="not_promoted: the search has ended"),
    trial(2, "stopped", unit=1, value=0.9, reason="no_improvement: for 3 reports"),
]


class Studies:
    """The calls of a control plane that is gone for every second of them."""

    def __init__(self, break_at: Callable[[int], BaseException | None]) -> None:
        self.break_at, self.calls = break_at, 0

    def _turn(self) -> None:
        self.calls += 1
        error = self.break_at(self.calls)
        if error is not None:
            raise error

    def events(self, num: int, *, after: int, wait_s: float) -> StudyEventPage:
        self._turn()
        page = EVENTS[after : after + 2]
        return StudyEventPage.model_validate(
            {"events": page, "cursor": after + len(page), "done": after >= len(EVENTS)}
        )

    def get(self, num: int) -> StudyView:
        self._turn()
        return StudyView.model_validate(STUDY)

    def trials(self, num: int, *, after: int, limit: int) -> TrialPage:
        self._turn()
        return TrialPage(trials=ROWS[after + 1 : after + 1 + limit])

    def all_trials(self, num: int) -> list[TrialView]:
        self._turn()
        return ROWS


class Connection:
    def __init__(self, studies: Studies) -> None:
        self.studies = studies

    def connect(self) -> Connection:
        return self


def follow(studies: Studies, **rest: Any) -> StudyView:
    session: Any = Connection(studies)
    return StudyFollower(session, StudyView.model_validate(STUDY)).run(**rest)


def test_each_event_is_shown_once_over_lost_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "backoff_s", lambda *_, **__: 0.0)
    follow(Studies(lambda call: ServerUnavailable("gone") if call % 2 else None))
    assert capsys.readouterr().err.splitlines() == [
        "s-3 lr: random, 3 trials, 2 at the same time",
        "s-3/0  loss 0.5, the best so far, at 1  lr=0.125",
        "s-3/1  paused: loss 0.7",
        "s-3/0  diverged (loss is not finite at unit 2): no value",
        "s-3/2  stopped (for 3 reports): loss 0.9 at 1",
        "1 trial not promoted beyond 1: s-3/1",
    ]


def test_a_lost_control_plane_is_said_to_leave_the_study_running(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "backoff_s", lambda *_, **__: 0.0)
    follow(Studies(lambda call: ServerUnavailable("gone") if call < 12 else None))
    assert "gone; the study continues; trying again" in capsys.readouterr().err


def test_from_now_on_earlier_events_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    follow(Studies(lambda _: None), from_now=True)
    assert capsys.readouterr().err.splitlines() == [
        "s-3 lr: random, 3 trials, 2 at the same time",
        "1 trial not promoted beyond 1: s-3/1",
    ]


def test_ctrl_c_leaves_the_study_running_and_says_how_to_follow_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    studies = Studies(lambda call: KeyboardInterrupt() if call == 2 else None)
    with pytest.raises(typer.Exit) as left:
        follow(studies)
    assert left.value.exit_code == 130
    assert "`phalanx sweep follow s-3`" in capsys.readouterr().err
    assert not hasattr(studies, "stop"), "nothing is asked of the study"
