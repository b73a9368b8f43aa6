"""Answer the open asks of studies: the params of their next trials.

An answer depends on the study as it was when the ask was decided, so the same ask gets the same answer
after a crash. It is computed outside of any transaction; the first one that is stored counts.
"""

from __future__ import annotations

from phalanx.core.search import draw
from phalanx.core.search import events as e
from phalanx.core.search.model import Origin, Study
from phalanx.core.search.space import Params, cell_of
from phalanx.services.platform import Platform
from phalanx.services.studies.commit import StudyWork, transact_studies
from phalanx.store.database import Tx
from phalanx.store.studies import commands, rows
from phalanx.store.studies.commands import OpenCommand

_BATCH = 64


def suggestions_step(platform: Platform, now: int) -> int | None:
    """Answer the asks that are due; returns when the next one is, or None."""

    def read(tx: Tx) -> list[tuple[OpenCommand, Study]]:
        found = commands.due(tx, now, only_asks=True, limit=_BATCH)
        stored = rows.load_many(tx, [one.study for one in found])
        return [(one, platform.studies.study(tx, stored[one.study])) for one in found]

    asked = platform.store.view(read)
    if not asked:
        return platform.store.view(lambda tx: commands.next_at(tx, only_asks=True))
    answers: list[tuple[OpenCommand, e.StudyEvent]] = []
    drawn: dict[int, set[draw.Cell]] = {}
    for one, study in asked:
        answer = _answer(study, one, drawn.setdefault(one.study, set()))
        if isinstance(answer, e.Suggested):
            drawn[one.study].add(cell_of(answer.params))
        answers.append((one, answer))

    def store(here: StudyWork) -> None:
        still = commands.finish(here.tx, [one.id for one, _ in answers])
        here.load({one.study for one, _ in answers})
        for one, event in answers:
            if one.id in still:
                here.apply(one.study, [event], "sampler")

    transact_studies(platform, now, store)
    return now


def _answer(study: Study, one: OpenCommand, drawn: set[draw.Cell]) -> e.StudyEvent:
    """The answer to one ask; `drawn` are the params of answers that are not stored yet."""
    assert one.trial is not None
    policy = study.policy
    earlier = [trial for trial in study.trials if trial.number < one.trial and trial.params]
    seen = drawn | {cell_of(trial.params) for trial in earlier}
    for sub in range(8):
        params = _draw(study, one.trial, sub, seen)
        if params is None:
            said = "every combination of the space has been tried, or none is allowed"
            return e.SuggestionFailed(one.trial, said, exhausted=True)
        if policy.duplicates == "allow" or cell_of(params) not in seen:
            return e.Suggested(one.trial, params, Origin(policy.method, "1", sub))
    if policy.space.num_cells() is not None:
        unseen = draw.grid_params(policy.space, policy.seed, one.trial, seen)
        if unseen is not None:
            reason = "the method repeated earlier params"
            return e.Suggested(one.trial, unseen, Origin("grid", "1", reason=reason))
    return e.SuggestionFailed(one.trial, "no new params were found", exhausted=True)


def _draw(study: Study, trial: int, sub: int, seen: set[draw.Cell]) -> Params | None:
    policy = study.policy
    if policy.method == "grid":
        return draw.grid_params(policy.space, policy.seed, trial, seen)
    if policy.method == "qmc" and sub == 0:
        return draw.qmc_params(policy.space, policy.seed, trial)
    return draw.random_params(policy.space, policy.seed, trial, sub)
