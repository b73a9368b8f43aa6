"""The built-in notifier on a real control plane's scrapes, with virtual minutes between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from e2e.platform.harness import Platform
from phalanx.core.alerts.prometheus import AlertLinks
from phalanx.core.notify.alert_life import AlertPhase, LiveAlert, evaluated
from phalanx.core.notify.grouping import AlertReceiver, ToldGroup, due_messages
from phalanx.core.notify.samples import BUILT_IN, READ, Sampled, Series
from phalanx.services.notify.messages import alert_body
from support.runbooks import blocks, run_block

MINUTE_US = 60_000_000
LINKS = AlertLinks(runbooks="https://wiki.example.com/runbooks")
HEARTBEAT = "PhalanxHeartbeat"


@dataclass
class GameDay:
    """One game day: evaluations of the table of alerts, and the messages that they made.

    Each sample is a scrape of the control plane. Its time is virtual: what must hold for hours holds for as
    many evaluations, not for as long.
    """

    platform: Platform
    at: int = 0  # microseconds UTC
    history: list[Sampled] = field(default_factory=list)
    live: dict[str, LiveAlert] = field(default_factory=dict)
    told: list[ToldGroup] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.minutes(1)

    def minutes(self, count: int, every: int = 1) -> None:
        """Evaluate every so many minutes until `count` have passed."""
        for _ in range(0, count, every):
            self.at += every * MINUTE_US
            self.history.append(Sampled(self.at, self._scraped()))
            self.live = evaluated(self.live.values(), BUILT_IN, self.history)
            self._tell()

    def _scraped(self) -> Mapping[Series, float]:
        with self.platform.client() as client:
            text = client._http.get("/metrics").raise_for_status().text
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in READ
        }

    def _tell(self) -> None:
        receivers = [AlertReceiver("ops", ("page", "ticket"))]
        due, told = due_messages(self.live.values(), receivers, (), self.told, self.at)
        self.told = list(told)
        for one in due:
            self.messages += json.loads(alert_body(one, LINKS, self.at))["data"]["alerts"]

    def firing(self) -> set[str]:
        """The names of the alerts that fire, apart from the heartbeat."""
        firing = {one.alert for one in self.live.values() if one.phase is AlertPhase.FIRING}
        return firing - {HEARTBEAT}

    def value(self, name: str, **labels: str) -> float:
        """The newest value of a series, summed over the labels that are not given; 0: none."""
        return sum(
            value
            for (found, given), value in self._scraped().items()
            if found == name and labels.items() <= dict(given).items()
        )

    def told_of(self, alert: str, status: str) -> dict[str, Any]:
        """The newest message about an alert in one state."""
        found = [one for one in self.messages if (one["alert"], one["status"]) == (alert, status)]
        assert found, f"no message says that {alert} is {status}: {self.messages}"
        return found[-1]

    def run_page(self, alert: str, names: Mapping[str, str]) -> None:
        """Once the alert is told, run the commands of its runbook; compare what they say with the page."""
        self.minutes(2)  # a group of alerts waits for half a minute before it is told

        def run(words: list[str]) -> tuple[int, str]:
            done = self.platform.run(*words, check=False)
            return done.returncode, done.stdout + done.stderr

        wrong: list[str] = []
        for block in blocks(alert):
            wrong += run_block(block, names, run)
        assert not wrong, "\n".join(wrong)
