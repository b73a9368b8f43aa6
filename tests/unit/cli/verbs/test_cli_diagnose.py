"""Stacks and profiles: which results belong to a request, and how they are printed."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from phalanx.cli.verbs import diagnose
from phalanx.errors import NotFound, UserError
from phalanx.schemas.api.telemetry import (
    ProfilesView,
    ProfileView,
    RankStacksView,
    RequestTicket,
    SplitView,
    StacksCapture,
    StacksView,
)

pytestmark = pytest.mark.unit
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
TICKET = RequestTicket(attempt=1, generation=0, request=4)


def capture(request: int, **more: object) -> StacksCapture:
    return StacksCapture(attempt=1, generation=0, request=request, at=NOON, ranks=[], **more)


def profile(request: int, **more: object) -> ProfileView:
    return ProfileView(
        attempt=1,
        generation=0,
        request=request,
        at=NOON,
        first_step=1,
        splits=[],
        finding="compute",
        said="",
        advice="",
        **more,
    )


def client(*captures: StacksCapture, profiles: tuple[ProfilesView, ...] = ()) -> SimpleNamespace:
    views = iter(profiles)
    return SimpleNamespace(
        ask_stacks=lambda num: TICKET,
        ask_profile=lambda num, body: TICKET,
        stacks=lambda num, **rest: StacksView(captures=list(captures), world_size=2),
        profiles=lambda num, **rest: next(views),
    )


def test_only_the_capture_of_this_request_is_taken() -> None:
    assert diagnose._take_stacks(client(capture(3), capture(4)), 1).request == 4
    with pytest.raises(NotFound, match="ended before they responded"):
        diagnose._take_stacks(client(capture(3)), 1)


def test_the_newest_stored_capture_is_shown() -> None:
    newer = capture(2).model_copy(update={"at": NOON.replace(hour=13)})
    assert diagnose._newest([newer, capture(3)], "capture of stacks", 1).request == 2
    with pytest.raises(NotFound, match="no capture of stacks is stored for j-1"):
        diagnose._newest([], "capture of stacks", 1)


def test_ranks_at_one_place_share_a_line_and_outliers_are_marked(capsys) -> None:
    ranks = [
        RankStacksView(rank=rank, node_rank=0, place=place)
        for rank, place in ((0, "train.py:7"), (1, "data.py:2"), (2, "train.py:7"))
    ]
    diagnose._print_places(capture(1, elsewhere=[1]).model_copy(update={"ranks": ranks}))
    assert capsys.readouterr().out.splitlines() == [
        "  rank 0, 2: train.py:7",
        "  rank 1: data.py:2  <- differs from the other ranks",
    ]


def test_a_profile_is_awaited_in_rounds_until_its_request_appears() -> None:
    early = ProfilesView(profiles=[profile(3)], attempt=1, generation=0)
    whole = ProfilesView(profiles=[profile(3), profile(4)], attempt=1, generation=0)
    found = diagnose._take_profile(client(profiles=(early, whole)), 1, (20, 3), [], 60.0)
    assert found.request == 4


def test_a_restart_ends_the_wait_for_a_profile_at_once() -> None:
    restarted = ProfilesView(profiles=[], attempt=1, generation=1)
    with pytest.raises(NotFound, match="restarted before its steps were profiled"):
        diagnose._take_profile(client(profiles=(restarted,)), 1, (20, 3), [], 600.0)


def test_a_profile_without_a_trace_cannot_be_copied(tmp_path) -> None:
    with pytest.raises(UserError, match="has no trace"):
        diagnose._copy_trace(profile(1), tmp_path / "out.json")
    with pytest.raises(UserError, match="cannot be copied"):
        diagnose._copy_trace(profile(1, trace=str(tmp_path / "gone")), tmp_path / "out.json")


def test_a_row_is_in_milliseconds_and_tolerates_no_steps() -> None:
    row = diagnose._split_row(SplitView(rank=1, steps=2, step_s=0.02, data_s=0.005, samples=8.0))
    assert row[:3] == (1, "20.00", "5.00") and row[-1] == "400"
    assert diagnose._split_row(SplitView(rank=0, steps=0, step_s=0.0))[-1] == "0"
