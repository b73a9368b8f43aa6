"""How long a decision of the study machine takes in a study of 10,000 trials."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict, deque

from phalanx.core.search import events as e
from phalanx.core.search import machine
from phalanx.core.search.index import restore
from phalanx.core.search.model import (
    Ask,
    ContinueTo,
    Origin,
    PauseTrial,
    Pin,
    ResumeTrial,
    RungPolicy,
    StopTrial,
    Study,
    StudyFacts,
    StudyPolicy,
    SubmitTrial,
    Trial,
    TrialResult,
    TrialStatus,
)
from phalanx.core.search.space import FloatParameter, Space

TARGET_S = 50e-6
_SPACE = Space({"x": FloatParameter(0.0, 1.0), "y": FloatParameter(0.0, 1.0)})


def large_study(count: int, chance: random.Random) -> Study:
    """A study in which a third of many trials have gone on from the first rung, and the rest wait."""
    policy = StudyPolicy(
        _SPACE, max_trials=10 * count, parallel=16, method="random", rungs=RungPolicy(hold_s=0.0)
    )
    values = [chance.random() for _ in range(count)]
    gone_on = set(sorted(range(count), key=values.__getitem__)[: count // 3])
    trials = []
    for number, value in enumerate(values):
        result = TrialResult(1, value, f"c{number}", value)
        on = number in gone_on
        trials.append(
            Trial(
                number,
                {"x": value, "y": number / count},
                Origin("random"),
                TrialStatus.STOPPED if on else TrialStatus.PAUSED,
                results=(result,),
                rung=int(on),
                until=3 if on else 1,
                best=result,
                last=result,
                queued_at=0,
                job=number,
                slot_s=1.0,
                settled_unit=1,
            )
        )
    return restore(1, policy, StudyFacts(0), trials)


def report(count: int, steps: int = 4000) -> bool:
    """Print the times by event; returns whether the mean keeps the goal."""
    chance = random.Random(0)
    study = large_study(count, chance)
    times: dict[str, list[float]] = defaultdict(list)
    now = 0

    def tell(event: e.StudyEvent) -> None:
        nonlocal study, now
        began = time.thread_time()
        decision = machine.decide(study, event, now)
        times[type(event).__name__].append(time.thread_time() - began)
        study, now = decision.study, now + 1000
        todo.extend(decision.commands)

    todo: deque[object] = deque()
    tell(e.BudgetSpent(1.0))
    while todo and steps:
        steps -= 1
        command = todo.popleft()
        if isinstance(command, Ask):
            params = {"x": chance.random(), "y": chance.random()}
            tell(e.Suggested(command.trial, params, Origin("random")))
        elif isinstance(command, SubmitTrial):
            tell(e.TrialSubmitted(command.trial, command.trial))
            tell(e.TrialStarted(command.trial))
            tell(e.TrialReported(command.trial, 1, chance.random(), "c"))
        elif isinstance(command, ResumeTrial):
            tell(e.TrialStarted(command.trial))
            tell(e.TrialReported(command.trial, command.unit or 1, chance.random(), "c"))
        elif isinstance(command, ContinueTo):
            tell(e.TrialReported(command.trial, command.unit or 1, chance.random(), "c"))
        elif isinstance(command, PauseTrial):
            tell(e.TrialPaused(command.trial, "c", 1.0))
        elif isinstance(command, Pin):
            tell(e.CheckpointPinned(command.trial, command.checkpoint))
        elif isinstance(command, StopTrial):
            tell(e.TrialEnded(command.trial, e.TrialOutcome.STOPPED))
    everything = [one for some in times.values() for one in some]
    mean = statistics.mean(everything)
    print(f"\ndecisions of a study of {count} trials, microseconds of processor time")
    print("| event | number | median | p99 |\n|---|---|---|---|")
    for name, some in sorted(times.items()):
        p99 = sorted(some)[int(0.99 * len(some))]
        print(f"| {name} | {len(some)} | {statistics.median(some) * 1e6:.0f} | {p99 * 1e6:.0f} |")
    kept = mean <= TARGET_S
    print(f"mean {mean * 1e6:.0f}, goal {TARGET_S * 1e6:.0f}: {'kept' if kept else 'missed'}")
    return kept
