"""Generated workloads that resemble busy research and LLM clusters."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phalanx.sim.jobs import TraceJob, gang_of
from phalanx.sim.workload.traces import LOCALITY, SENSITIVITIES, WEIGHTS

_DAY_S = 86_400.0
_HOUR_S = 3600.0


def research(
    num_jobs: int, load_slots: float, node_size: int = 8, seed: int = 0, num_projects: int = 4
) -> list[TraceJob]:
    """Many small jobs with heavy-tailed durations and a few gangs.

    Arrivals are spread so that `load_slots` slots are wanted on average.
    """
    rng = random.Random(seed)
    rows = []
    for _ in range(num_jobs):
        slots = rng.choices([1, 2, 4, 8, 16, 32], [0.75, 0.07, 0.08, 0.07, 0.02, 0.01])[0]
        duration_s = min(max(rng.lognormvariate(math.log(1200.0), 1.9), 30.0), 5 * _DAY_S)
        rows.append((min(slots, node_size * 8), duration_s))
    return _spread(rng, rows, load_slots, node_size, num_projects, num_kinds=0)


def training(
    num_jobs: int, load_slots: float, node_size: int = 8, seed: int = 0, num_projects: int = 4
) -> list[TraceJob]:
    """Longer runs than `research` and more gangs: hours to weeks, up to 64 slots.

    Arrivals are spread so that `load_slots` slots are wanted on average.
    """
    rng = random.Random(seed)
    rows = []
    for _ in range(num_jobs):
        slots = rng.choices([1, 2, 4, 8, 16, 32, 64], [0.4, 0.1, 0.12, 0.22, 0.1, 0.04, 0.02])[0]
        hours = rng.lognormvariate(math.log(5.0), 1.4)
        rows.append((min(slots, node_size * 8), min(max(hours * 3600.0, 120.0), 20 * _DAY_S)))
    return _spread(rng, rows, load_slots, node_size, num_projects, num_kinds=12)


def _spread(
    rng: random.Random,
    rows: list[tuple[int, float]],
    load_slots: float,
    node_size: int,
    num_projects: int,
    num_kinds: int,
) -> list[TraceJob]:
    """Jobs of these slots and durations, with arrivals that ask for `load_slots` on average."""
    span_s = sum(slots * duration for slots, duration in rows) / max(load_slots, 1.0)
    times = sorted(rng.random() * span_s for _ in rows)
    return [
        TraceJob(
            num,
            at_s,
            duration_s,
            gang_of(slots, node_size),
            project=f"team-{rng.randrange(num_projects)}",
            kind=f"kind-{rng.randrange(num_kinds)}" if num_kinds else "",
            sensitivity=rng.choices(SENSITIVITIES, WEIGHTS)[0],
        )
        for num, (at_s, (slots, duration_s)) in enumerate(zip(times, rows, strict=True), start=1)
    ]


@dataclass(frozen=True, slots=True)
class _Mould:
    """One kind of job of the LLM mix: arrivals an hour, slots by weight, median run and its spread."""

    label: str
    per_hour: float
    slots: tuple[int, ...]
    weights: tuple[float, ...]
    median_s: float
    spread: float
    checkpoint_s: float


_PRETRAIN = _Mould(
    *("pretrain", 0.35, (128, 256, 512, 768, 1024), (0.3, 0.35, 0.2, 0.05, 0.1)),
    *(9 * _HOUR_S, 1.1, 1800.0),
)
_TUNE = _Mould(
    *("sft", 2.2, (8, 16, 32, 64, 128), (0.35, 0.25, 0.2, 0.15, 0.05), 1.4 * _HOUR_S, 1.2, 1200.0)
)
_DEBUG = _Mould("debug", 6.0, (1, 2, 4, 8, 16), (0.35, 0.15, 0.15, 0.3, 0.05), 420.0, 1.3, 0.0)
_EVALUATE = _Mould("eval", 1.1, (1, 2, 4, 8), (0.75, 0.1, 0.05, 0.1), 150.0, 1.0, 0.0)
_SMALL = _Mould("train-small", 1.5, (1, 2, 4, 8), (0.4, 0.2, 0.2, 0.2), 2.5 * _HOUR_S, 1.4, 900.0)
_TENANTS = {
    **{"pretrain": 0.40, "align": 0.20, "multimodal": 0.15, "eval": 0.10, "infra": 0.05},
    **{"intern-a": 0.04, "intern-b": 0.03, "intern-c": 0.03},
}
_FAILED = 0.40


def llm_mix(
    seed: int = 0, days: int = 14, load_slots: float = 1800.0, node_size: int = 8
) -> list[TraceJob]:
    """Pre-training gangs of up to 1,024 slots, fine-tuning, bursts of evaluation, and debugging.

    The shape follows public aggregates of a large LLM cluster: pre-training is a few per cent of the jobs
    and most of the slot time, evaluation most of the jobs, and four jobs in ten fail early. The runs of
    training are stretched so that about `load_slots` slots are wanted on average.
    """
    found = sorted(_Mixer(random.Random(seed), days * _DAY_S).rows)
    stretch = load_slots * days * _DAY_S / sum(row[1] * row[2] for row in found)
    jobs = []
    for num, (at, lasts, slots, tenant, label, locality, every) in enumerate(found, start=1):
        if label in (_PRETRAIN.label, _TUNE.label):
            lasts = max(20, int(lasts * stretch))
        jobs.append(
            TraceJob(
                num,
                float(at),
                min(float(lasts), 10 * _DAY_S),
                gang_of(slots, node_size),
                project=tenant,
                kind=f"{tenant}/{label}",
                label=label,
                sensitivity=LOCALITY[locality],
                checkpoint_s=every,
            )
        )
    return jobs


class _Mixer:
    """Draws the rows of the LLM mix: submission, run, slots, tenant, label, locality, checkpoints."""

    def __init__(self, rng: random.Random, span_s: float) -> None:
        self.rng = rng
        self.span_s = span_s
        self.rows: list[tuple[int, int, int, str, str, str, float]] = []
        self._each(_PRETRAIN, 0.3, lambda: "pretrain", lambda: "high")
        groups = ["align", "multimodal", "pretrain"]
        self._each(_TUNE, 0.5, lambda: rng.choice(groups), lambda: rng.choice(["mid", "high"]))
        self._each(_DEBUG, None, self._any_tenant, lambda: "low")
        self._bursts()
        interns = ["intern-a", "intern-b", "intern-c", "multimodal"]
        self._each(_SMALL, 0.4, lambda: rng.choice(interns), lambda: "mid")

    def _any_tenant(self) -> str:
        return self.rng.choices(list(_TENANTS), list(_TENANTS.values()))[0]

    def _each(
        self,
        mould: _Mould,
        elastic: float | None,
        tenant: Callable[[], str],
        locality: Callable[[], str],
    ) -> None:
        for at_s in self._arrivals(mould.per_hour):
            slots, lasts_s, owner = self._slots(mould), self._run_s(mould), tenant()
            # Drawn but unused (whether the job is elastic): all jobs here have a fixed size.
            self._drop(elastic)
            self._add(mould, at_s, slots, lasts_s, owner, locality())

    def _bursts(self) -> None:
        """Add bursts of evaluations that arrive together after a checkpoint."""
        for at_s in self._arrivals(_EVALUATE.per_hour):
            for _ in range(self.rng.randint(10, 60)):
                each_s = at_s + self.rng.random() * 120
                slots, lasts_s = self._slots(_EVALUATE), self._run_s(_EVALUATE)
                self._add(_EVALUATE, each_s, slots, lasts_s, "eval", "low")

    def _drop(self, chance: float | None) -> None:
        if chance is not None:
            self.rng.random()

    def _slots(self, mould: _Mould) -> int:
        return self.rng.choices(mould.slots, mould.weights)[0]

    def _run_s(self, mould: _Mould) -> float:
        return self.rng.lognormvariate(math.log(mould.median_s), mould.spread)

    def _add(
        self, mould: _Mould, at_s: float, slots: int, lasts_s: float, tenant: str, locality: str
    ) -> None:
        drawn = self.rng.random()
        if drawn >= 1.0 - _FAILED:
            lasts_s *= self.rng.random() ** 1.5
        lasts = max(20, int(lasts_s))
        row = (int(at_s), lasts, slots, tenant, mould.label, locality, mould.checkpoint_s)
        self.rows.append(row)

    def _arrivals(self, per_hour: float) -> Iterator[float]:
        """Yield arrivals of a Poisson process that follows the hours of the day."""
        at_s = 0.0
        while True:
            at_s += self.rng.expovariate(per_hour / _HOUR_S)
            if at_s > self.span_s:
                return
            if self.rng.random() < self._by_day(at_s) / 0.8:
                yield at_s

    def _by_day(self, at_s: float) -> float:
        angle = (at_s % _DAY_S) / _DAY_S * 2 * math.pi - 0.6 * math.pi
        return 0.35 + 0.65 * max(0.0, math.sin(angle))
