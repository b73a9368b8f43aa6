"""Trials of other studies that a new one learns from (`search.warm_start`), read once at its submission."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.search.model import Study
from phalanx.core.search.observations import observations
from phalanx.core.search.sampling import Observation
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import parse_study_label, study_label
from phalanx.schemas.spec.study import StudySpec
from phalanx.search.history import thinned
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.studies import rows
from phalanx.store.studies.rows import StoredStudy, StudyFilter

# Trials that are kept with the new study: of each earlier one, and of all.
_OF_ONE, _OF_ALL = 300, 1000


@dataclass(frozen=True, slots=True)
class EarlierStudy:
    """What a new study learns from an earlier one; `dropped` trials do not fit its space."""

    num: int
    trials: tuple[Observation, ...]
    dropped: int


def earlier_studies(platform: Platform, spec: StudySpec, project: str) -> list[EarlierStudy]:
    """The studies that `search.warm_start` names by number, or by name: the newest of that name.

    Only studies of the same project are found. Raises SpecInvalid with every problem.
    """
    found: list[EarlierStudy] = []
    problems: list[Problem] = []
    names = list(dict.fromkeys(spec.search.warm_start))
    for name in names:
        try:
            found.append(platform.store.view(lambda tx: _read(platform, tx, spec, name, project)))  # noqa: B023
        except ValueError as error:
            problems.append(Problem("search.warm_start", str(error), name))
    if problems:
        raise SpecInvalid(problems)
    limit = min(_OF_ONE, _OF_ALL // max(len(found), 1))
    return [EarlierStudy(one.num, tuple(thinned(one.trials, limit)), one.dropped) for one in found]


def _read(platform: Platform, tx: Tx, spec: StudySpec, name: str, project: str) -> EarlierStudy:
    """One earlier study. Raises ValueError where it is of no use."""
    stored = _named(tx, name, project)
    if stored is None:
        # The same words for a study of another project, so that nothing is told about it.
        raise ValueError(f"there is no such study in project {project}")
    study = platform.studies.study(tx, stored)
    theirs, ours = study.policy.objective, spec.objective
    if (theirs.metric, theirs.goal) != (ours.metric, ours.goal):
        said = f"{study_label(study.num)} was to {theirs.goal} {theirs.metric}"
        raise ValueError(f"{said}, this one is to {ours.goal} {ours.metric}")
    return _fitting(study, spec)


def _named(tx: Tx, name: str, project: str) -> StoredStudy | None:
    num = parse_study_label(name)
    if num is not None:
        stored = rows.load_many(tx, [num]).get(num)
        return stored if stored is not None and stored.header.project == project else None
    wanted = StudyFilter(project=project, name=name)
    return next(iter(rows.page(tx, wanted, before=None, limit=1)), None)


def _fitting(study: Study, spec: StudySpec) -> EarlierStudy:
    space = spec.to_space()
    ended = [one for one in observations(study) if one.is_finite]
    fit = tuple(one for one in ended if not space.violations(one.params))
    if not fit:
        said = f"none of the {len(ended)} trials of {study_label(study.num)} with a result"
        raise ValueError(f"{said} fits this space")
    return EarlierStudy(study.num, fit, len(ended) - len(fit))
