"""An example of a configuration of Alertmanager: routes, groups and inhibition for the alerts."""

from __future__ import annotations

from typing import Any

from phalanx.core.alerts.table import ALERTS, Severity

GROUP_BY = ("cluster", "project", "phalanx_job")
"""One message for each job of each cluster, and one for what belongs to no job."""
HEARTBEAT = "PhalanxHeartbeat"
#: Alerts that explain others: while the first one fires, the others are not delivered.
EXPLAINED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "PhalanxDown",
        tuple(one.name for one in ALERTS if one.name not in ("PhalanxDown", HEARTBEAT)),
    ),
    (
        "PhalanxNoLeader",
        ("PhalanxLoopStuck", "PhalanxCommandsLate", "PhalanxQueueWait", "PhalanxGuaranteeNotMet"),
    ),
    (
        "PhalanxNodesLost",
        (
            "PhalanxStragglers",
            "PhalanxGangsStall",
            "PhalanxThroughputDrop",
            "PhalanxPreemptionStorm",
        ),
    ),
    ("PhalanxErrorBudgetBurnsFast", ("PhalanxErrorBudgetBurnsSlowly",)),
    ("PhalanxJobFailureCascade", ("PhalanxStartsFail", "PhalanxGangsDoNotForm")),
    ("PhalanxGuaranteeNotMet", ("PhalanxPoolExhausted", "PhalanxQueueWait")),
    ("PhalanxCheckpointOverdue", ("PhalanxSavesFail",)),
)


def alertmanager_example() -> dict[str, Any]:
    """The configuration; its receivers have addresses to replace."""
    return {
        "route": {
            "receiver": "phalanx-tickets",
            "group_by": list(GROUP_BY),
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "24h",
            "routes": [
                {
                    "matchers": [f'alertname="{HEARTBEAT}"'],
                    "receiver": "phalanx-heartbeat",
                    "group_wait": "0s",
                    "group_interval": "1m",
                    "repeat_interval": "1m",
                },
                {
                    "matchers": [f'severity="{Severity.PAGE.value}"'],
                    "receiver": "phalanx-pages",
                    "repeat_interval": "4h",
                },
            ],
        },
        "inhibit_rules": [
            {
                "source_matchers": [f'alertname="{cause}"'],
                "target_matchers": [f'alertname=~"{"|".join(others)}"'],
                "equal": ["cluster"],
            }
            for cause, others in EXPLAINED
        ],
        "receivers": [
            _webhook("phalanx-pages", "https://pager.example.com/phalanx"),
            _webhook("phalanx-tickets", "https://tickets.example.com/phalanx"),
            _webhook("phalanx-heartbeat", "https://heartbeat.example.com/phalanx"),
        ],
    }


def _webhook(name: str, url: str) -> dict[str, Any]:
    return {"name": name, "webhook_configs": [{"url": url}]}
