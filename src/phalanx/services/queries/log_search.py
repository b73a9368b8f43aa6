"""Answers of a search in the output of a job, as pages of lines with a count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

from phalanx.core.jobs.model import TERMINAL
from phalanx.core.logs.levels import level_of
from phalanx.core.logs.matching import FoundLine, Place
from phalanx.errors import UserError
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.telemetry import LogSearchPage, MatchingLine
from phalanx.services.logs.search import LogSearch, SearchLimits, search
from phalanx.services.platform import Platform
from phalanx.services.queries.views import parts_of, ranks_of, role_of
from phalanx.store import jobs
from phalanx.store.jobs import StoredJob

_MAX_NUMBER = 2**63
_START: Place = (0, 0)


def search_logs(
    platform: Platform,
    num: int,
    wanted: LogSearch,
    role: str | None,
    cursor: str | None,
    limits: SearchLimits,
    monotonic: Callable[[], float],
) -> LogSearchPage:
    """The next lines that match behind `cursor`, and how many do.

    With `role`, ranks are those of its world. Raises NotFound, UserError for an expression, a cursor or a
    role that is none, and DataUnavailable where packed output cannot be read now.
    """
    stored = platform.store.view(lambda tx: jobs.load(tx, num))
    wanted = replace(wanted, ranks=ranks_of(stored, role, wanted.ranks))
    after = _START if cursor is None else _place(cursor)
    over = stored.job.state in TERMINAL
    found = search(platform, num, wanted, after, limits, monotonic, is_over=over)
    return LogSearchPage(
        lines=[_line(stored, one) for one in found.lines],
        count=found.count,
        exact=not found.stopped and not found.unreadable_bytes,
        unreadable_bytes=found.unreadable_bytes,
        searched=round(found.searched, 4),
        cursor=None if found.next is None else ":".join(map(str, found.next)),
    )


def _line(stored: StoredJob, found: FoundLine) -> MatchingLine:
    attempt, generation, rank, stream = found.key
    level = level_of(found.text)
    line = MatchingLine(
        rank=rank,
        stream=cast("Literal['out', 'err']", stream),
        at=at_of(found.at),
        text=found.text.decode("utf-8", errors="replace"),
        attempt=attempt,
        generation=generation,
        partial=not found.is_whole,
        level=None if level is None else level.word,  # type: ignore[arg-type]
    )
    if not stored.job.policy.roles:
        return line
    role, in_role = role_of(parts_of(stored), rank)
    return line.model_copy(update={"role": role, "rank_in_role": in_role})


def _place(cursor: str) -> Place:
    segment, _, offset = cursor.partition(":")
    try:
        place = int(segment), int(offset)
    except ValueError:
        place = (-1, 0)
    if not (0 <= place[0] < _MAX_NUMBER and abs(place[1]) < _MAX_NUMBER):
        raise UserError(
            f"{cursor[:100]!r} is no place in a search", "use the `cursor` of the last answer"
        )
    return place
