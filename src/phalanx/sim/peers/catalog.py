"""Every policy by name; the production planner as a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from phalanx.core.scheduling import ClusterIndex, Plan, plan_pass
from phalanx.sim.model import Oracle, SchedulingPolicy
from phalanx.sim.peers.backfill import Conservative, easy, slurm_like
from phalanx.sim.peers.cohorts import kai_like, kueue_like
from phalanx.sim.peers.preemptive import Preemptive, by, gittins, las, las_authors, srpt_key
from phalanx.sim.peers.queues import ALL_SHAPES, Fifo, Shortest, best_fit, first_fit
from phalanx.sim.peers.rounds import gandiva_like, gavel_max_min, themis_like


class Production:
    """The production planner."""

    name = "phalanx"

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """One production pass."""
        return plan_pass(cluster, now)


class Blind:
    """The same planner with every job's last checkpoint set to the present.

    Every victim is then equally cheap for its size, as for schedulers without checkpoint times.
    """

    name = "phalanx-blind"

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Run one production pass on changed checkpoint times, which are restored afterwards."""
        told = {num: held.saved_at for num, held in cluster.held.items()}
        for num in told:
            cluster.saved(num, now)
        try:
            return plan_pass(cluster, now)
        finally:
            for num, saved_at in told.items():
                cluster.held[num] = replace(cluster.held[num], saved_at=saved_at)


POLICIES: Mapping[str, Callable[..., SchedulingPolicy]] = {
    "phalanx": Production,
    "fifo-first-fit": partial(Fifo, "fifo-first-fit", first_fit, 0),
    "skip-first-fit": partial(Fifo, "skip-first-fit", first_fit, ALL_SHAPES),
    "fifo": partial(Fifo, "fifo", best_fit, 0),
    "fifo-skip": partial(Fifo, "fifo-skip", best_fit, ALL_SHAPES),
    "easy": easy,
    "conservative": partial(Conservative, "conservative"),
    "slurm-like": slurm_like,
    "kueue-like": kueue_like,
    "kai-like": kai_like,
    "sjf-predicted": partial(Shortest, "sjf-predicted", 1.0),
    "sjf-oracle": partial(Shortest, "sjf-oracle", 0.0),
    "las": las,
    "las-authors": las_authors,
    "gittins": gittins,
    "gandiva-like": gandiva_like,
    "themis-like": themis_like,
    "gavel-max-min": gavel_max_min,
    "srpt-oracle": partial(Preemptive, "srpt-oracle", by(srpt_key), 0.0),
    "phalanx-blind": Blind,
}
"""Every policy by name. Oracles use true durations: they are bounds, not competitors.

Most makers take constants of their policy as keywords; without any, they are those of its paper or
manual.
"""
