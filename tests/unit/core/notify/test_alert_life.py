"""The life of an alert, and the messages about it, under any course of a condition."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.alerts.table import BY_NAME
from phalanx.core.notify.alert_life import MAX_GAP_US, AlertPhase, LiveAlert, advanced
from phalanx.core.notify.grouping import (
    COOL_DOWN_US,
    GROUP_WAIT_US,
    MOST_ALERTS,
    REPEAT_US,
    STORM_GROUPS,
    AlertMessage,
    AlertReceiver,
    AlertSilence,
    ToldGroup,
    due_messages,
)
from phalanx.core.notify.signing import RETRY_AFTER_S, next_try

S = 1_000_000
MINUTE = 60 * S
ALERT = replace(BY_NAME["PhalanxNodesLost"], hold_s=180, keep_s=120)
OPS = AlertReceiver("ops", ("page", "ticket"))
COURSES = st.lists(st.booleans(), min_size=1, max_size=60)


def course(holds: list[bool], alert: object = ALERT) -> list[LiveAlert | None]:
    found: list[LiveAlert | None] = []
    known = None
    for at, held in enumerate(holds):
        known = advanced(known, ALERT, (), 1.0 if held else None, at * MINUTE)
        found.append(known)
    return found


@given(COURSES)
def test_an_alert_fires_exactly_when_it_has_held_for_long_enough(holds: list[bool]) -> None:
    for at, one in enumerate(course(holds)):
        began = at
        while began and holds[began - 1] and holds[at]:
            began -= 1
        if holds[at] and at - began >= 3:
            assert one is not None and one.phase is AlertPhase.FIRING
        if one is not None and one.phase is AlertPhase.FIRING:
            # It has held for three minutes, and not been over for two since.
            recent = [i for i in range(at + 1) if (holds[i] and at - i < 2) or i == at]
            assert any(holds[i] for i in recent)
            assert one.fired_at is not None and one.fired_at - one.since >= 180 * S


@given(COURSES)
def test_phases_only_follow_one_another_in_order(holds: list[bool]) -> None:
    before: LiveAlert | None = None
    for one in course(holds):
        phases = (None if before is None else before.phase, None if one is None else one.phase)
        assert phases[0] == phases[1] or phases in {
            (None, AlertPhase.PENDING),
            (AlertPhase.PENDING, None),
            (AlertPhase.PENDING, AlertPhase.FIRING),
            (AlertPhase.FIRING, AlertPhase.RESOLVED),
            (AlertPhase.RESOLVED, AlertPhase.PENDING),
        }
        before = one


def test_a_pending_alert_begins_anew_after_a_gap() -> None:
    first = advanced(None, ALERT, (), 1.0, 0)
    later = advanced(first, ALERT, (), 1.0, MAX_GAP_US + 1)
    assert later is not None and later.phase is AlertPhase.PENDING
    assert later.since == MAX_GAP_US + 1
    soon = advanced(first, ALERT, (), 1.0, MAX_GAP_US)
    assert soon is not None and soon.phase is AlertPhase.FIRING


def firing(name: str, job: str = "j-1", at: int = 0) -> LiveAlert:
    labels = (("phalanx_job", job), ("project", "vision"))
    return LiveAlert(name, labels, AlertPhase.FIRING, at, at, 1.0, fired_at=at)


_EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 20)), min_size=1, max_size=60
)


@given(_EVENTS)
def test_messages_of_a_group_keep_the_cool_down_and_tell_each_change_once(
    events: list[tuple[int, bool, int]],
) -> None:
    """Alerts of two jobs come and go; time passes between."""
    live: dict[str, LiveAlert] = {}
    told: list[ToldGroup] = []
    now, last, open_alerts = 0, dict[object, int](), set[str]()
    names = ("PhalanxNodesLost", "PhalanxSavesFail")
    for which, fires, minutes in events:
        one = firing(names[which % 2], f"j-{which // 2}", now)
        key = one.fingerprint
        was = live.get(key)
        if fires and (was is None or was.phase is AlertPhase.RESOLVED):
            live[key] = one
        elif not fires and was is not None and was.phase is AlertPhase.FIRING:
            live[key] = replace(was, phase=AlertPhase.RESOLVED, resolved_at=now)
        for _ in range(minutes):
            now += MINUTE
            messages, told = due_messages(live.values(), [OPS], [], told, now)
            for message in messages:
                group = message.group
                assert now - last.get(group, -COOL_DOWN_US) >= COOL_DOWN_US
                last[group] = now
                for alert in message.resolved:
                    assert alert.fingerprint in open_alerts  # told before, and told once
                    open_alerts.discard(alert.fingerprint)
                open_alerts |= {alert.fingerprint for alert in message.firing}
    for _ in range(12):  # after a quiet time everything is told
        now += MINUTE
        for message in (found := due_messages(live.values(), [OPS], [], told, now))[0]:
            open_alerts -= {one.fingerprint for one in message.resolved}
            open_alerts |= {one.fingerprint for one in message.firing}
        told = found[1]
    assert open_alerts == {k for k, one in live.items() if one.phase is AlertPhase.FIRING}


def test_what_lasts_is_repeated_and_nothing_else() -> None:
    one, told, sent = firing("PhalanxSavesFail"), list[ToldGroup](), list[int]()
    for minute in range(49 * 60):
        messages, told = due_messages([one], [OPS], [], told, minute * MINUTE)
        sent += [minute] * len(messages)
    repeat = REPEAT_US[list(REPEAT_US)[1]] // MINUTE
    assert sent == [1, 1 + repeat, 1 + 2 * repeat]
    assert due_messages([one], [OPS], [], [], GROUP_WAIT_US - 1)[0] == []


def test_alerts_that_are_explained_or_silenced_are_not_told() -> None:
    lost, slow = firing("PhalanxNodesLost"), firing("PhalanxStragglers")
    (message,) = due_messages([lost, slow], [OPS], [], [], MINUTE)[0]
    assert [one.alert for one in message.firing] == ["PhalanxNodesLost"]
    silence = AlertSilence(1, (("alertname", "PhalanxNodes*"), ("project", "vision")), 9 * MINUTE)
    assert due_messages([lost], [OPS], [silence], [], MINUTE)[0] == []
    assert len(due_messages([lost], [OPS], [silence], [], 9 * MINUTE)[0]) == 1
    other = replace(silence, matchers=(("project", "text"),))
    assert len(due_messages([lost], [OPS], [other], [], MINUTE)[0]) == 1
    absent = replace(silence, matchers=(("pool", "*"),))
    assert len(due_messages([lost], [OPS], [absent], [], MINUTE)[0]) == 1


def test_receivers_get_their_severities_and_projects() -> None:
    page, ticket = firing("PhalanxResumeFailed"), firing("PhalanxSavesFail")
    pages = AlertReceiver("pages", ("page",))
    text = AlertReceiver("text", ("page", "ticket"), ("text",))
    messages, _ = due_messages([page, ticket], [pages, text], [], [], MINUTE)
    assert [(one.receiver, len(one.firing)) for one in messages] == [("pages", 1)]


def test_a_storm_is_one_message() -> None:
    live = [firing("PhalanxSavesFail", f"j-{num}") for num in range(STORM_GROUPS)]
    messages, told = due_messages(live, [OPS], [], [], MINUTE)
    assert len(messages) == STORM_GROUPS and not any(one.digest for one in messages)
    live += [firing("PhalanxSavesFail", f"j-{num}") for num in range(100, 200)]
    messages, told = due_messages(live, [OPS], [], [], MINUTE)
    (digest,) = messages
    assert isinstance(digest, AlertMessage) and digest.digest
    assert len(digest.firing) == STORM_GROUPS + 100 > MOST_ALERTS and len(told) == len(live)
    # Each group was told: nothing comes again before its time.
    assert due_messages(live, [OPS], [], told, MINUTE + COOL_DOWN_US)[0] == []


def test_pauses_between_tries_grow_to_a_day_and_end() -> None:
    found = [next_try(num, 0, 0.0) for num in range(1, len(RETRY_AFTER_S) + 2)]
    assert found == [*(one * S for one in RETRY_AFTER_S), None]
    assert next_try(2, 0, 1.0) == 360 * S
