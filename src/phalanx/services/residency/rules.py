"""The residency rules of a job, and the stores of a job that they do not allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.residency import (
    DataStore,
    ResidencyRule,
    allowed_by,
    in_words,
    outside,
    residency_of,
)
from phalanx.errors import Problem
from phalanx.kit.text import job_label
from phalanx.schemas.pools.project_file import ProjectSpec, StoreSpec, lineage
from phalanx.store.jobs import JobFacts, StoredJob
from phalanx.store.resources import Applied

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class OutsideJob:
    """A running job that its rules, which have changed, do not allow where it is."""

    stored: StoredJob
    problem: str  # with the name of the job in front it is a sentence
    advice: str  # a command

    @property
    def text(self) -> str:
        """What is wrong, and what to do."""
        return f"{job_label(self.stored.job.num)} {self.problem}: {self.advice}"


@dataclass(frozen=True, slots=True)
class ResidencyRules:
    """The rules of all projects and the declared stores, as they are now."""

    projects: Mapping[str, ProjectSpec] = field(default_factory=dict)
    stores: tuple[DataStore, ...] = ()

    @classmethod
    def of(cls, projects: Iterable[Applied], stores: Iterable[Applied]) -> ResidencyRules:
        """From the applied projects and stores."""
        return cls(
            {one.name: ProjectSpec(**one.body) for one in projects},
            tuple(StoreSpec(**one.body).to_core() for one in stores),
        )

    def of_job(self, project: str, own: Sequence[str] | None) -> list[ResidencyRule]:
        """The rules of a job: its own, that of its project and those above."""
        rules = [] if own is None else [ResidencyRule("the job", tuple(own))]
        for one in lineage(self.projects, project):
            if one.residency:
                rules.append(ResidencyRule(f"project {one.name}", tuple(one.residency)))
        return rules

    def allowed(self, facts: JobFacts) -> tuple[str, ...] | None:
        """The values that a job may use; None: any."""
        return allowed_by(self.of_job(facts.project, facts.demand.residency))

    def problems(
        self, project: str, own: Sequence[str] | None, spec: Mapping[str, Any]
    ) -> list[Problem]:
        """Why a job with this spec is refused: rules that agree on nothing, or a store outside."""
        rules = self.of_job(project, own)
        if allowed_by(rules) == ():
            return [Problem("residency", f"nothing is allowed by all rules: {in_words(rules)}")]
        found = outside(urls_of(spec), self.stores, rules)
        return [Problem(one.path, one.message, one.url) for one in found]

    def waits_for(self, facts: JobFacts) -> Reason | None:
        """Why a queued job may not start: a store that its rules, which have changed, do not allow."""
        problems = self.problems(facts.project, facts.demand.residency, facts.spec)
        if not problems:
            return None
        return Reason(ReasonCode.OUTSIDE_RESIDENCY, "; ".join(str(one) for one in problems))

    def outside(
        self, holding: Iterable[StoredJob], labels: Mapping[str, Iterable[tuple[str, str]]]
    ) -> list[OutsideJob]:
        """Running jobs on nodes, or with stores, that their rules do not allow; `labels` by node."""
        found = []
        for one in holding:
            attempt, allowed = one.job.attempt, self.allowed(one.facts)
            if attempt is None or allowed is None:
                continue
            label, facts = job_label(one.job.num), one.facts
            rules = in_words(self.of_job(facts.project, facts.demand.residency))
            nodes = list(dict.fromkeys(share.node for share in attempt.placement.shares))
            wrong = [n for n in nodes if n in labels and residency_of(labels[n]) not in allowed]
            if wrong:
                there = sorted({residency_of(labels[node]) or "no residency" for node in wrong})
                more = " …" if len(wrong) > _SHOWN else ""
                said = (
                    f"runs on {', '.join(wrong[:_SHOWN])}{more} ({', '.join(there)}), outside its "
                    f"residency; {rules}"
                )
                advice = f"`phalanx pause {label}`, or drain the nodes with --move"
                found.append(OutsideJob(one, said, advice))
            problems = self.problems(facts.project, facts.demand.residency, facts.spec)
            if problems:
                said = "; ".join(str(problem) for problem in problems)
                found.append(OutsideJob(one, f"runs although {said}", f"`phalanx stop {label}`"))
        return found


def urls_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """The URLs and paths of data and checkpoints that a spec names, by their field."""
    found = {
        f"data.{name}": url
        for name, url in (spec.get("data") or {}).items()
        if isinstance(url, str)
    }
    checkpoint = spec.get("checkpoint")
    store = checkpoint.get("store") if isinstance(checkpoint, Mapping) else None
    begins = checkpoint.get("resume_from") if isinstance(checkpoint, Mapping) else None
    if isinstance(begins, str) and "/" in begins:
        found["checkpoint.resume_from"] = begins
    return {**found, "checkpoint.store": store} if isinstance(store, str) else found
