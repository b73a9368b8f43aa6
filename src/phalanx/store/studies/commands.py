"""The commands of studies: stored with the events that caused them, deleted with their results.

All but a suggestion take effect in the database alone, in the transaction that deletes the command, so no
lease is needed. A suggestion is computed outside of any transaction; the same command gives the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from sqlalchemy import ColumnElement, Integer, Select, bindparam, func, select

from phalanx.core.codec import decode, encode
from phalanx.core.search.model import StudyCommand
from phalanx.store.database import Tx, read, take_numbers
from phalanx.store.events import kind_of
from phalanx.store.tables import study_commands

STUDY_COMMANDS = "study_commands"
"""Topic of new commands."""
SUGGESTIONS = "suggestions"
"""Topic of new commands that ask for a suggestion."""
ASK = "ask"
_KINDS: Mapping[str, type[StudyCommand]] = {kind_of(one): one for one in get_args(StudyCommand)}


@dataclass(frozen=True, slots=True)
class OpenCommand:
    """A command that has not been carried out."""

    id: int  # order of the decisions
    study: int  # number of the study
    trial: int | None  # None: not about one trial
    kind: str  # command class in snake case
    data: dict[str, Any]  # the encoded command
    seq: int  # of the study's last event when it was decided
    tries: int  # so far

    @property
    def command(self) -> StudyCommand:
        """The command itself."""
        return decode(_KINDS[self.kind], self.data)


_COLUMNS = [study_commands.c[one.name] for one in fields(OpenCommand)]
_INSERT = study_commands.insert()
_FINISH = (
    study_commands.delete()
    .where(study_commands.c.id.in_(bindparam("_ids", expanding=True)))
    .returning(study_commands.c.id)
)
_WAITING = select(study_commands.c.study, study_commands.c.trial).where(
    study_commands.c.study.in_(bindparam("_studies", expanding=True)),
    study_commands.c.kind != ASK,
    study_commands.c.trial.is_not(None),
)


def _both(query: Callable[[ColumnElement[bool]], Select[Any]]) -> dict[bool, Select[Any]]:
    """A query for asks (True) and one for all other commands (False)."""
    return {True: query(study_commands.c.kind == ASK), False: query(study_commands.c.kind != ASK)}


_DUE = _both(
    lambda kind: (
        select(*_COLUMNS)
        .where(study_commands.c.not_before <= bindparam("_now"), kind)
        .order_by(study_commands.c.id)
        .limit(bindparam("_limit", type_=Integer))
    )
)
_NEXT_AT = _both(lambda kind: select(func.min(study_commands.c.not_before)).where(kind))


def add(tx: Tx, fresh: Sequence[tuple[int, int, StudyCommand]], now: int) -> None:
    """Store commands, each with its study and the number of the event that caused it, in this order."""
    if not fresh:
        return
    first = take_numbers(tx, "study_command", len(fresh))
    rows: list[dict[str, Any]] = [
        {
            **{"id": first + index, "study": num, "trial": getattr(one, "trial", None)},
            "seq": seq,
            **{"kind": kind_of(type(one)), "data": encode(one), "error": None},
            **{"created_at": now, "not_before": now, "tries": 0},
        }
        for index, (num, seq, one) in enumerate(fresh)
    ]
    tx.conn.execute(_INSERT, rows)
    kinds = {row["kind"] for row in rows}
    tx.touched.topics.update({STUDY_COMMANDS} if kinds - {ASK} else ())
    tx.touched.topics.update({SUGGESTIONS} if ASK in kinds else ())


def due(tx: Tx, now: int, *, only_asks: bool, limit: int = 500) -> list[OpenCommand]:
    """Up to `limit` commands that are due, oldest first: those for suggestions, or all others."""
    return read(tx, OpenCommand, _DUE[only_asks], {"_now": now, "_limit": limit})


def finish(tx: Tx, ids: Sequence[int]) -> set[int]:
    """Delete commands that have been carried out; returns those that were still there.

    The others have been carried out by an earlier transaction: their results must not be stored again.
    """
    if not ids:
        return set()
    return set(tx.conn.execute(_FINISH, {"_ids": list(ids)}).scalars())


def put_back(tx: Tx, one: OpenCommand, now: int, *, not_before: int) -> None:
    """Store a command again in the transaction that deleted it, to be carried out later."""
    row = {"id": one.id, "study": one.study, "trial": one.trial, "kind": one.kind, "data": one.data}
    row |= {"seq": one.seq, "created_at": now, "not_before": not_before, "tries": one.tries + 1}
    tx.conn.execute(study_commands.insert(), {**row, "error": None})


def waiting_trials(tx: Tx, studies: Sequence[int]) -> set[tuple[int, int]]:
    """The trials (study, number) of these studies that have an open command other than an ask."""
    found = tx.conn.execute(_WAITING, {"_studies": list(studies)})
    return {(study, trial) for study, trial in found}


def of_study(tx: Tx, num: int) -> list[OpenCommand]:
    """The open commands of one study, oldest first."""
    here = study_commands.c
    query = select(*_COLUMNS).where(here.study == num)
    return read(tx, OpenCommand, query.order_by(here.id))


def next_at(tx: Tx, *, only_asks: bool) -> int | None:
    """When the next command is due; None without open commands."""
    value = tx.conn.execute(_NEXT_AT[only_asks]).scalar()
    return None if value is None else int(value)
