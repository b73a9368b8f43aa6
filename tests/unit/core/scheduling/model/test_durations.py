"""What is learned of finished jobs does not fill the memory, however many names they have."""

from __future__ import annotations

import pytest

from phalanx.core.scheduling.model.durations import KINDS_KEPT, History, KindKey

pytestmark = pytest.mark.unit


def test_kinds_that_were_seen_longest_ago_are_forgotten() -> None:
    history, more = History(), 50
    keys = [KindKey("p", f"me/run-{i}", 0) for i in range(KINDS_KEPT + more)]
    for key in keys[:KINDS_KEPT]:
        history.observe(key, 600.0)
    history.observe(keys[0], 600.0)  # comes again: it is not the oldest any more
    assert len(history.counts) == KINDS_KEPT + 2  # beside all jobs, and those of one size
    for key in keys[KINDS_KEPT:]:
        history.observe(key, 600.0)
    assert len(history.counts) == KINDS_KEPT + 2
    assert keys[0] in history.counts and keys[-1] in history.counts
    assert not any(key in history.counts for key in keys[1 : more + 1])
    assert history.num_observed == KINDS_KEPT + more + 1  # all jobs together are still known
    # A kind that was forgotten is estimated as one that was never seen.
    forgotten, never = keys[1], KindKey("p", "me/never", 0)
    assert history.index(forgotten, 0) == history.index(never, 0)
    assert history.index(keys[0], 0) != history.index(never, 0)


def test_answers_about_kinds_are_not_kept_without_end_either() -> None:
    history = History()
    first = KindKey("p", "me/one", 0)
    table = history._table(first)
    asked = [KindKey("p", f"me/asked-{i}", 0) for i in range(KINDS_KEPT - 1)]
    history._tables.update(dict.fromkeys(asked, table))
    assert len(history._tables) == KINDS_KEPT
    for i in range(5):
        history.index(KindKey("p", f"me/more-{i}", 0), 0)
    assert len(history._tables) == KINDS_KEPT and first not in history._tables
