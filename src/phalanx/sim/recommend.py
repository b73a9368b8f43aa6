"""Recommend a planning policy: replay the same jobs under each, and compare what projects get.

A policy is only recommended if it harms no project: each project's mean time from submission to end may
grow by at most a tenth and three minutes beside that under the present policy. Of those left the least
mean delay of all jobs wins, and the present policy keeps its place unless another is better by a
twentieth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from phalanx.core.scheduling import NAMED_POLICIES, Project
from phalanx.sim.jobs import TraceJob
from phalanx.sim.output.report import ProjectRow
from phalanx.sim.scenario import Outcome, Scenario, run

_HARM, _HARM_H = 1.1, 0.05
_WORTH, _WORTH_H = 0.05, 0.01
_SHARED_OUT = 0.8


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay: the policy, how the quotas differ from the present ones, and its figures."""

    planner: str
    quotas: str
    outcome: Outcome

    @property
    def delay_h(self) -> float:
        """Mean delay of all jobs, hours."""
        return self.outcome.figures.delay_h

    def named(self) -> str:
        """The policy with the change of its quotas."""
        return self.planner if not self.quotas else f"{self.planner}, {self.quotas}"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The policy to set, the quotas to apply if others are better, the reasons, and all replays."""

    planner: str
    projects: tuple[Project, ...]
    reasons: tuple[str, ...]
    trials: tuple[Replay, ...]

    def command(self) -> str:
        """The command that sets the policy of a control plane."""
        return f"phalanx scheduler policy set {self.planner}"


def recommend(
    base: Scenario,
    jobs: Sequence[TraceJob],
    say: Callable[[str], None] = lambda text: None,
) -> Recommendation:
    """Replay the jobs under every policy, then the best one under other quotas.

    `base.planner` is the present policy. Raises UserError for jobs that the cluster cannot hold.
    """
    names = [base.planner, *(name for name in NAMED_POLICIES if name != base.planner)]
    trials: list[Replay] = []
    for name in names:
        say(f"[{len(trials) + 1}] {name}: {len(jobs)} jobs …")
        scenario = replace(base, policy="phalanx", planner=name, label=f" [{name}]")
        trials.append(Replay(name, "", run(scenario, jobs)))
    best, reasons = _choose(trials[0], trials[1:])
    projects: tuple[Project, ...] = ()
    for what, changed in other_quotas(base, trials[0].outcome).items():
        say(f"[{len(trials) + 1}] {best.planner}, {what}: {len(jobs)} jobs …")
        scenario = replace(
            base,
            policy="phalanx",
            planner=best.planner,
            projects=changed,
            label=f" [{best.planner}, {what}]",
        )
        trial = Replay(best.planner, what, run(scenario, jobs))
        trials.append(trial)
        chosen, more = _choose(best, [trial])
        reasons += more
        if chosen is trial:
            best, projects = trial, changed
    return Recommendation(best.planner, projects, tuple(reasons), tuple(trials))


def other_quotas(base: Scenario, now: Outcome) -> dict[str, tuple[Project, ...]]:
    """Other quotas that are worth a replay, by what they change.

    Without limits, where projects have some; and guarantees in proportion to the slot time that each
    project used, four fifths of the cluster in all, where there are several projects.
    """
    found: dict[str, tuple[Project, ...]] = {}
    if any(project.max_slots is not None for project in base.projects):
        free = tuple(replace(project, max_slots=None) for project in base.projects)
        found["without limits"] = free
    used = {row.project: row.slot_h for row in now.projects}
    total = sum(used.values())
    if len(used) > 1 and total > 0:
        slots = _SHARED_OUT * sum(node.num_slots for node in base.nodes())
        known = {project.name: project for project in base.projects}
        shares = {
            name: replace(
                known.get(name, Project(name)), guaranteed_slots=int(slots * part / total)
            )
            for name, part in used.items()
        }
        if tuple(sorted(shares)) != tuple(sorted(known)) or shares != known:
            parents = {name: one for name, one in known.items() if name not in shares}
            found["guarantees by use"] = tuple((parents | shares).values())
    return found


def _choose(now: Replay, others: Sequence[Replay]) -> tuple[Replay, list[str]]:
    """Return the best trial that harms no project, and a line on each of the others."""
    best, reasons = now, []
    for trial in others:
        harmed = _harmed(now, trial)
        gain_h = now.delay_h - trial.delay_h
        said = f"{trial.named()}: mean delay {trial.delay_h:.2f} h beside {now.delay_h:.2f} h"
        if harmed is not None:
            before, after = harmed
            reasons.append(
                f"{said}; jobs of {after.project or 'no project'} would end after "
                f"{after.jct_h:.2f} h instead of {before.jct_h:.2f} h"
            )
        elif gain_h < max(_WORTH * now.delay_h, _WORTH_H):
            reasons.append(f"{said}: not enough to change")
        else:
            reasons.append(f"{said}, and no project loses")
            if trial.delay_h < best.delay_h:
                best = trial
    return best, reasons


def _harmed(now: Replay, trial: Replay) -> tuple[ProjectRow, ProjectRow] | None:
    """Return the project that loses most, before and after; None if none loses."""
    before = {row.project: row for row in now.outcome.projects}
    worse = [
        (row.jct_h - before[row.project].jct_h, before[row.project], row)
        for row in trial.outcome.projects
        if row.jct_h > _HARM * before[row.project].jct_h + _HARM_H
    ]
    if not worse:
        return None
    _, first, last = max(worse, key=lambda one: one[0])
    return first, last


def project_file(projects: Sequence[Project]) -> str:
    """The projects as a project file for `phalanx projects apply`."""
    lines = ["schema: 1", "projects:"]
    for one in projects:
        lines.append(f"  - name: {one.name}")
        if one.parent:
            lines.append(f"    parent: {one.parent}")
        lines.append(f"    guaranteed_slots: {one.guaranteed_slots}")
        if one.max_slots is not None:
            lines.append(f"    max_slots: {one.max_slots}")
        if one.lend_slots is not None:
            lines.append(f"    lend_slots: {one.lend_slots}")
        if one.max_running is not None:
            lines.append(f"    max_running: {one.max_running}")
        if one.weight != 1.0:
            lines.append(f"    weight: {one.weight:g}")
    return "\n".join(lines) + "\n"
