"""Reads the dashboards as they are shipped, for the reference page and for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from phalanx.monitoring.bundle import dashboard_texts


@dataclass(frozen=True, slots=True)
class ShippedPanel:
    """One panel of a JSON file."""

    board: str  # the title of the dashboard
    row: str
    title: str
    text: str
    unit: str
    queries: tuple[str, ...]

    @property
    def name(self) -> str:
        """The panel among all dashboards."""
        return f"{self.board} / {self.row} / {self.title}"


def boards() -> list[dict[str, Any]]:
    """The dashboards, the executive one first."""
    order = ("executive", "on-call", "debug", "training", "devices", "control-plane")
    found = [json.loads(text) for text in dashboard_texts().values()]
    return sorted(found, key=lambda one: order.index(one["uid"].removeprefix("phalanx-")))


def panels() -> Iterator[ShippedPanel]:
    """Every panel of every dashboard, in order."""
    for board in boards():
        row = ""
        for one in board["panels"]:
            if one["type"] == "row":
                row = one["title"]
                continue
            defaults = one["fieldConfig"]["defaults"]
            unit = defaults.get("unit") or one["options"].get("yAxis", {}).get("unit", "")
            queries = tuple(target["expr"] for target in one["targets"])
            yield ShippedPanel(board["title"], row, one["title"], one["description"], unit, queries)
