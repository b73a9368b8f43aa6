"""Answer the open asks of studies: the params of their next trials.

An answer depends on the study as it was when the ask was decided, so the same ask gets the same answer
after a crash. It is computed outside of any transaction; the first one that is stored counts.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.search import events as e
from phalanx.core.search.machine import rebuild
from phalanx.core.search.model import Origin, Study
from phalanx.core.search.observations import bare_request, sample_request
from phalanx.core.search.sampling import Exhausted, Observation, SampleRequest
from phalanx.core.search.space import Params
from phalanx.errors import NotSupported
from phalanx.search.methods import needs_model
from phalanx.services.platform import Platform
from phalanx.services.studies.commit import StudyWork, transact_studies
from phalanx.store.database import Tx
from phalanx.store.studies import commands, log, rows
from phalanx.store.studies.commands import OpenCommand
from phalanx.store.studies.rows import StoredStudy

_BATCH = 64
_MOST_EVENTS = 1000


def suggestions_step(platform: Platform, now: int) -> int | None:
    """Answer the asks that are due; returns when the next one is, or None."""

    def read(tx: Tx) -> list[tuple[OpenCommand, Study, Study]]:
        found = commands.due(tx, now, only_asks=True, limit=_BATCH)
        stored = rows.load_many(tx, [one.study for one in found])
        studies = {num: platform.studies.study(tx, row) for num, row in stored.items()}
        return [
            (one, studies[one.study], _as_asked(tx, one, stored[one.study], studies[one.study]))
            for one in found
        ]

    asked = platform.store.view(read)
    if not asked:
        return platform.store.view(lambda tx: commands.next_at(tx, only_asks=True))
    answers: list[tuple[OpenCommand, e.StudyEvent]] = []
    drawn: dict[int, dict[int, Params]] = {}
    for one, study, as_asked in asked:
        here = drawn.setdefault(one.study, {})
        answer = _answer(platform, study, as_asked, one, here)
        if isinstance(answer, e.Suggested):
            here[answer.trial] = answer.params
        answers.append((one, answer))

    def store(here: StudyWork) -> None:
        still = commands.finish(here.tx, [one.id for one, _ in answers])
        here.load({one.study for one, _ in answers})
        for one, event in answers:
            if one.id in still:
                here.apply(one.study, [event], "sampler")

    transact_studies(platform, now, store)
    return now


def _as_asked(tx: Tx, one: OpenCommand, stored: StoredStudy, study: Study) -> Study:
    """The study with the results that were known when the ask was decided.

    So an ask that is answered after a crash gets the same answer. A long study is not rebuilt for that.
    """
    if stored.last_seq == one.seq or one.seq > _MOST_EVENTS or not needs_model(study.policy.method):
        return study
    return rebuild(log.study_log(tx, one.study, up_to=one.seq))


def _answer(
    platform: Platform, study: Study, as_asked: Study, one: OpenCommand, drawn: dict[int, Params]
) -> e.StudyEvent:
    """The answer to one ask; `drawn` are the params of answers that are not stored yet."""
    assert one.trial is not None
    before = {number: params for number, params in drawn.items() if number < one.trial}
    seen = platform.studies.tried(study).before(one.trial, before.values())
    try:
        made = platform.sampler.suggest(_request(study, as_asked, one.trial, before), seen=seen)
    except NotSupported as error:
        return e.SuggestionFailed(one.trial, error.message)
    if isinstance(made, Exhausted):
        return e.SuggestionFailed(one.trial, made.reason, exhausted=True)
    origin = Origin(made.sampler, made.version, made.sub, reason=made.reason)
    return e.Suggested(one.trial, made.params, origin)


def _request(study: Study, as_asked: Study, trial: int, drawn: dict[int, Params]) -> SampleRequest:
    """What a sampler is told; methods without a model need no trials, however many there are."""
    if not needs_model(study.policy.method):
        return bare_request(as_asked, trial)
    request = sample_request(as_asked, trial)
    known = {one.number for one in as_asked.trials if one.params}
    earlier = {
        one.number: one.params
        for one in study.trials
        if one.number < trial and one.params and one.number not in known
    } | drawn
    fresh = [Observation(n, dict(params)) for n, params in earlier.items() if n not in known]
    told = sorted([*request.observations, *fresh], key=lambda each: each.number)
    return replace(request, observations=tuple(told))
