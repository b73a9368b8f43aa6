"""Bodies of messages: the JSON that webhooks get, and text of it for mail and chat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from phalanx.core.alerts.prometheus import AlertLinks, dashboard_url, runbook_url
from phalanx.core.alerts.table import BY_NAME
from phalanx.core.notify.alert_life import LiveAlert
from phalanx.core.notify.grouping import MOST_ALERTS, AlertMessage, severity_of
from phalanx.core.reasons import Reason
from phalanx.kit.text import job_label
from phalanx.kit.units import format_duration, to_rfc3339
from phalanx.store.jobs import StoredJob

ALERTS, DIGEST, TEST, JOB = "alerts", "digest", "test", "job."
"""Kinds of messages; that of a job has the state behind it, or `waiting`."""
WAITING = f"{JOB}waiting"
_FIELD = re.compile(r"\{(\w+)(?::(\w+))?\}")


def summary_of(one: LiveAlert) -> str:
    """The summary of an alert with its numbers."""
    alert, labels = BY_NAME.get(one.alert), dict(one.labels)

    def put(found: re.Match[str]) -> str:
        name, form = found[1], found[2]
        if name != "value":
            return labels.get(name, "")
        if form == "seconds":
            return format_duration(one.value)
        return f"{100 * one.value:.3g} %" if form == "percent" else f"{one.value:.6g}"

    return one.alert if alert is None else _FIELD.sub(put, alert.summary)


def alert_data(one: LiveAlert, links: AlertLinks) -> dict[str, Any]:
    """An alert as messages contain it."""
    alert = BY_NAME.get(one.alert)
    labels = dict(one.labels)
    found: dict[str, Any] = {
        "alert": one.alert,
        "status": one.phase.value,
        "severity": severity_of(one).value,
        "fingerprint": one.fingerprint,
        "labels": labels,
        "value": one.value,
        "summary": summary_of(one),
        "starts_at": to_rfc3339(one.fired_at or one.since),
    }
    if one.resolved_at is not None:
        found["ends_at"] = to_rfc3339(one.resolved_at)
    if alert is not None:
        found["description"] = alert.meaning
        found["failure_mode"] = alert.mode.value
        found["runbook_url"] = runbook_url(alert, links)
        found["dashboard_url"] = dashboard_url(alert, links)
    if links.control_plane and "phalanx_job" in labels:
        found["job_url"] = f"{links.control_plane}/jobs/{labels['phalanx_job'].removeprefix('j-')}"
    return {key: value for key, value in found.items() if value not in ("", None)}


def alert_body(message: AlertMessage, links: AlertLinks, now: int) -> str:
    """The body of a message about alerts."""
    every = [*message.firing, *message.resolved]
    data = {
        "receiver": message.receiver,
        "cluster": links.cluster,
        "group": dict(message.group),
        "status": "firing" if message.firing else "resolved",
        "title": _title(message),
        "alerts": [alert_data(one, links) for one in every[:MOST_ALERTS]],
        "left_out": max(0, len(every) - MOST_ALERTS),
    }
    return _body(DIGEST if message.digest else ALERTS, data, now)


def _title(message: AlertMessage) -> str:
    of = " ".join(value for _, value in message.group)
    where = f" ({of})" if of else ""
    if not message.firing:
        return f"resolved: {_names(message.resolved)}{where}"
    if message.digest:
        return f"{len(message.firing)} alerts fire, {len(message.resolved)} are resolved"
    return f"firing: {_names(message.firing)}{where}"


def _names(found: tuple[LiveAlert, ...]) -> str:
    names = sorted({one.alert for one in found})
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def job_body(stored: StoredJob, url: str, now: int) -> str:
    """The body of a message about the end of a job."""
    said = f"{stored.job.state.value}: {stored.job.reason.message}"
    return _body(JOB + stored.job.state.value, _of_job(stored, stored.job.reason, said, url), now)


def wait_body(stored: StoredJob, waited_s: float, url: str, now: int) -> str:
    """The body of a message about a job that has waited in the queue for so long."""
    reason = stored.pending_reason or stored.job.reason
    said = f"has waited for {format_duration(waited_s)}: {reason.message}"
    data = _of_job(stored, reason, said, url) | {"waited_s": waited_s}
    return _body(WAITING, data, now)


def _of_job(stored: StoredJob, reason: Reason, said: str, url: str) -> dict[str, Any]:
    job, facts = stored.job, stored.facts
    return {
        "job": job_label(job.num),
        "name": facts.name,
        "project": facts.project,
        "owner": facts.owner,
        "state": job.state.value,
        "reason": {"code": reason.code.value, "message": reason.message},
        "title": f"{job_label(job.num)} ({facts.name}) {said}",
        "url": url,
    }


def test_body(receiver: str, now: int) -> str:
    """The body of a message that only shows that messages arrive."""
    data = {"receiver": receiver, "title": f"a test of the receiver {receiver}"}
    return _body(TEST, data, now)


def _body(kind: str, data: Mapping[str, Any], now: int) -> str:
    message = {"type": kind, "timestamp": to_rfc3339(now), "data": data}
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False)


def title_and_text(body: str) -> tuple[str, str]:
    """One line, and the lines below it, for channels of humans."""
    data = json.loads(body)["data"]
    title = _line(data.get("title", ""))
    return title, "\n".join(_lines(data))


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    for one in data.get("alerts", ()):
        ends = " until " + one["ends_at"] if "ends_at" in one else ""
        yield _line(f"[{one['severity']}] {one['alert']}: {one['summary']}")
        yield _line(f"  {one['status']} since {one['starts_at']}{ends}")
        for key in ("job_url", "runbook_url", "dashboard_url"):
            if key in one:
                yield _line(f"  {one[key]}")
    if data.get("left_out"):
        yield f"and {data['left_out']} more"
    if data.get("url"):
        yield _line(data["url"])


def _line(text: str) -> str:
    """Text of one line without control characters: names of jobs come from users."""
    return "".join(char if char.isprintable() else " " for char in text)[:500]
