"""The loops of the built-in notifier: one evaluates alerts, the other delivers messages."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.core.notify.samples import READ, Series
from phalanx.launch.tls.trust import client_context
from phalanx.server.context import Context
from phalanx.server.loops.runner import ServiceLoop
from phalanx.server.observe.exposition import Exposition
from phalanx.services.guarded_http import GuardedHttp
from phalanx.services.notify.delivery import deliver_step
from phalanx.services.notify.evaluation import AlertHistory, evaluate_step
from phalanx.services.notify.transports import Transports
from phalanx.services.platform import Platform
from phalanx.store.notify.deliveries import DELIVERIES

_DELIVERY_TICK_S = 60.0


@dataclass(slots=True)
class _Evaluating:
    """Evaluates on what a scrape of this process would contain."""

    context: Context
    platform: Platform
    exposition: Exposition
    history: AlertHistory = field(default_factory=AlertHistory)

    def step(self, now: int) -> int | None:
        evaluate_step(self.platform, self.context.notify, self.history, self._sample, now)
        return None

    def _sample(self, now: int) -> Mapping[Series, float]:
        return self.exposition.samples(now, READ)


def notify_loops(context: Context, platform: Platform) -> tuple[ServiceLoop, ServiceLoop]:
    """Both loops. A receiver that does not answer stops nothing else."""
    config = context.notify
    rng = random.Random()
    http = GuardedHttp(config.allow_private, context.clock.monotonic, client_context(""))
    send = Transports(http, config.mail)
    evaluating = _Evaluating(context, platform, Exposition(context))

    def deliver(now: int) -> int | None:
        return deliver_step(platform, config, send, rng.random, now)

    every_s = context.settings.notify.evaluate_s
    return (
        ServiceLoop("alerts", evaluating.step, (), every_s, needed=False),
        ServiceLoop("deliveries", deliver, (DELIVERIES,), _DELIVERY_TICK_S, needed=False),
    )
