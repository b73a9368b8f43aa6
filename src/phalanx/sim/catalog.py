"""Policies and scenarios by name, for the command line and the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phalanx.sim.model import SchedulingPolicy
from phalanx.sim.peers.backfill import Conservative, Easy, slurm_like
from phalanx.sim.peers.cohorts import kai_like, kueue_like
from phalanx.sim.peers.preemptive import Preemptive, by, gittins_key, las, las_authors, srpt_key
from phalanx.sim.peers.production import Blind, Production
from phalanx.sim.peers.queues import EVERYBODY, Fifo, Shortest, best_fit, first_fit
from phalanx.sim.peers.rounds import gandiva_like, gavel_max_min, themis_like

POLICIES: Mapping[str, Callable[[], SchedulingPolicy]] = {
    "phalanx": Production,
    "fifo-first-fit": lambda: Fifo("fifo-first-fit", first_fit, 0),
    "skip-first-fit": lambda: Fifo("skip-first-fit", first_fit, EVERYBODY),
    "fifo": lambda: Fifo("fifo", best_fit, 0),
    "fifo-skip": lambda: Fifo("fifo-skip", best_fit, EVERYBODY),
    "easy": lambda: Easy("easy"),
    "conservative": lambda: Conservative("conservative"),
    "slurm-like": slurm_like,
    "kueue-like": kueue_like,
    "kai-like": kai_like,
    "sjf-predicted": lambda: Shortest("sjf-predicted", 1.0),
    "sjf-oracle": lambda: Shortest("sjf-oracle", 0.0),
    "las": las,
    "las-authors": las_authors,
    "gittins": lambda: Preemptive("gittins", by(gittins_key)),
    "gandiva-like": gandiva_like,
    "themis-like": themis_like,
    "gavel-max-min": gavel_max_min,
    "srpt-oracle": lambda: Preemptive("srpt-oracle", by(srpt_key), 0.0),
    "phalanx-blind": Blind,
}
"""Every policy by name. Oracles use true durations: they are bounds, not competitors."""
