"""Policies and scenarios by name, for the command line and the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phalanx.sim.engine import Policy
from phalanx.sim.peers.preemptive import Preemptive, gittins_key, las_key, srpt_key
from phalanx.sim.peers.production import Production
from phalanx.sim.peers.queues import EVERYBODY, Easy, Fifo, Shortest, best_fit, first_fit

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "phalanx": Production,
    "fifo-first-fit": lambda: Fifo("fifo-first-fit", first_fit, 0),
    "skip-first-fit": lambda: Fifo("skip-first-fit", first_fit, EVERYBODY),
    "fifo": lambda: Fifo("fifo", best_fit, 0),
    "fifo-skip": lambda: Fifo("fifo-skip", best_fit, EVERYBODY),
    "easy": lambda: Easy("easy"),
    "sjf-predicted": lambda: Shortest("sjf-predicted", 1.0),
    "sjf-oracle": lambda: Shortest("sjf-oracle", 0.0),
    "las": lambda: Preemptive("las", las_key),
    "gittins": lambda: Preemptive("gittins", gittins_key),
    "srpt-oracle": lambda: Preemptive("srpt-oracle", srpt_key, 0.0),
}
"""Every policy by name. An oracle knows true durations: a bound, not a competitor."""
