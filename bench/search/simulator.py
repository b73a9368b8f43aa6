"""An event simulator of one study around the production machine: workers, durations, late messages.

The simulator stands for the control plane and the cluster: it carries out the commands of the study
machine in simulated time. A trial trains one unit in a time that is log-normally distributed; a resume
costs `resume_s`.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.search import events as e
from phalanx.core.search import machine
from phalanx.core.search.model import (
    Ask,
    ContinueTo,
    ForkTrial,
    Origin,
    PauseTrial,
    Pin,
    ResumeTrial,
    StopTrial,
    Study,
    StudyPolicy,
    SubmitTrial,
    TrialStatus,
)

US = 1_000_000
Suggest = Callable[[Study, int], Mapping[str, Any] | None]
Curve = Callable[[Mapping[str, Any], int], float]


@dataclass
class SimulatedJob:
    unit: int = 0
    until: int | None = None
    runs: bool = False
    token: int = 0
    speed: float = 1.0
    busy_s: float = 0.0
    started_at: float = 0.0
    asked_to: str = ""


@dataclass
class Outcome:
    study: Study
    slot_s: float
    units: int
    makespan_s: float
    resumes: int
    continued: int
    decisions: int
    log: list[tuple[e.StudyEvent, int]] = field(default_factory=list)


class Simulation:
    """One study on as many workers as it may have parallel trials."""

    def __init__(
        self,
        policy: StudyPolicy,
        suggest: Suggest,
        curve: Curve,
        *,
        max_units: int,
        seed: int = 0,
        unit_s: float = 1.0,
        spread: float = 0.3,
        resume_s: float = 1.0,
        latency_s: float = 0.01,
    ) -> None:
        self.suggest, self.curve, self.max_units = suggest, curve, max_units
        self.unit_s, self.spread, self.resume_s = unit_s, spread, resume_s
        self.latency_s = latency_s
        self.random = random.Random(seed)
        self.jobs: dict[int, SimulatedJob] = {}
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.now = 0.0
        self.units = self.resumes = self.continued = self.decisions = 0
        self.log: list[tuple[e.StudyEvent, int]] = []
        submitted = e.StudySubmitted(1, policy)
        self.log.append((submitted, 0))
        decision = machine.create(submitted, 0)
        self.study = decision.study
        self.execute(decision.commands)

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now + delay_s, self.count, call))

    def tell(self, event: e.StudyEvent) -> None:
        now = round(self.now * US)
        decision = machine.decide(self.study, event, now)
        self.decisions += 1
        if decision.ignored is None:
            self.log.append((event, now))
        self.study = decision.study
        self.check()
        self.execute(decision.commands)
        wake = machine.wake_at(self.study)
        if wake is not None:
            self.after(max(wake / US - self.now, 0.0) + 1e-6, self.alarm)

    def alarm(self) -> None:
        for event in machine.due(self.study, round(self.now * US)):
            self.tell(event)

    def check(self) -> None:
        """The invariants that every study keeps."""
        index, policy = self.study.index, self.study.policy
        assert len(index.placed) - index.outside <= policy.parallel, "more trials than places"
        if policy.max_trials is not None:
            assert index.counted <= policy.max_trials, "more trials than allowed"

    def execute(self, commands: tuple[object, ...]) -> None:
        for command in commands:
            self.after(self.latency_s, lambda one=command: self.carry_out(one))

    def carry_out(self, command: object) -> None:
        if isinstance(command, Ask):
            params = self.suggest(self.study, command.trial)
            if params is None:
                self.tell(e.SuggestionFailed(command.trial, "no more", exhausted=True))
            else:
                self.tell(e.Suggested(command.trial, params, Origin("bench")))
        elif isinstance(command, SubmitTrial):
            self.start(command.trial, SimulatedJob(speed=self.draw_speed()))
        elif isinstance(command, ForkTrial):
            parent = int(command.checkpoint.rpartition(":")[2])
            self.start(command.trial, SimulatedJob(unit=parent, speed=self.draw_speed()))
        elif isinstance(command, ResumeTrial):
            self.resumes += 1
            job = self.jobs[command.trial]
            job.until, job.asked_to = command.unit, ""
            self.after(self.resume_s, lambda: self.run(command.trial, job))
        elif isinstance(command, ContinueTo):
            self.continued += 1
            job = self.jobs[command.trial]
            job.until = command.unit
            if job.runs:
                self.train(command.trial, job)
        elif isinstance(command, PauseTrial | StopTrial):
            self.leave(command)
        elif isinstance(command, Pin):
            self.tell(e.CheckpointPinned(command.trial, command.checkpoint))

    def draw_speed(self) -> float:
        return math.exp(self.random.gauss(0.0, self.spread))

    def start(self, number: int, job: SimulatedJob) -> None:
        job.until = self.study.trials[number].until
        self.jobs[number] = job
        self.tell(e.TrialSubmitted(number, number + 1))
        self.after(self.resume_s, lambda: self.run(number, job))

    def run(self, number: int, job: SimulatedJob) -> None:
        if self.jobs.get(number) is not job or job.runs or job.asked_to == "gone":
            return
        job.runs, job.started_at = True, self.now
        self.tell(e.TrialStarted(number))
        self.train(number, job)

    def train(self, number: int, job: SimulatedJob) -> None:
        job.token += 1
        token = job.token
        self.after(self.unit_s * job.speed, lambda: self.trained(number, job, token))

    def trained(self, number: int, job: SimulatedJob, token: int) -> None:
        if token != job.token or not job.runs:
            return
        job.unit += 1
        self.units += 1
        params = self.study.trials[number].params
        value = self.curve(params, job.unit)
        checkpoint = f"checkpoint:{number}:{job.unit}"
        self.tell(e.TrialReported(number, job.unit, value, checkpoint))
        if not job.runs:
            return
        if job.unit >= self.max_units:
            self.end(number, job, e.TrialOutcome.SUCCEEDED)
        elif job.until is None or job.unit < job.until:
            self.train(number, job)

    def busy(self, job: SimulatedJob) -> float:
        if job.runs:
            job.busy_s += self.now - job.started_at
        job.runs = False
        job.token += 1
        return job.busy_s

    def leave(self, command: PauseTrial | StopTrial) -> None:
        job = self.jobs.get(command.trial)
        if job is None or job.asked_to == "gone":
            return
        if isinstance(command, PauseTrial):
            used = self.busy(job)
            self.tell(e.TrialPaused(command.trial, f"checkpoint:{command.trial}:{job.unit}", used))
        else:
            self.end(command.trial, job, e.TrialOutcome.STOPPED)

    def end(self, number: int, job: SimulatedJob, outcome: e.TrialOutcome) -> None:
        used = self.busy(job)
        job.asked_to = "gone"
        self.tell(e.TrialEnded(number, outcome, "", used))

    def go(self) -> Outcome:
        """Run the study to its end. Raises AssertionError if it comes to a standstill before."""
        while self.queue and not self.study.is_over:
            self.now, _, call = heapq.heappop(self.queue)
            call()
        placed = [self.study.trials[number].status for number in self.study.index.placed]
        assert self.study.is_over, f"a standstill at {self.now:.0f} s: {self.study.facts} {placed}"
        assert all(one.status is not TrialStatus.PAUSED for one in self.study.trials)
        makespan_s = self.now
        while self.queue:  # what is on its way still counts
            self.now, _, call = heapq.heappop(self.queue)
            call()
        slot_s = sum(job.busy_s for job in self.jobs.values())
        return Outcome(
            self.study,
            slot_s,
            self.units,
            makespan_s,
            self.resumes,
            self.continued,
            self.decisions,
            self.log,
        )
