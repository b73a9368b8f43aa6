"""The weekly and the monthly review as Markdown: objectives, failures, cost, quotas, what to discuss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx.cli.client.checkpoint_locations import VALID
from phalanx.kit.text import job_label
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from phalanx.schemas.api.cost import CostReport, CostView
    from phalanx.schemas.api.health.objectives import ObjectiveReport, ObjectivesView
    from phalanx.schemas.api.jobs import EventView, JobView
    from phalanx.schemas.api.pools import QuotaView

HEADS = ("CLASS", "OBJECTIVE", "TARGET", "REACHED", "EVENTS", "BAD", "BUDGET LEFT", "STATE")
_MOST_ROWS = 20
_FULL_PERCENT = 80


@dataclass(frozen=True, slots=True)
class ReviewFacts:
    """What a review is made of. Cost, quotas and checkpoints are those of a month only."""

    title: str  # week or month
    project: str | None
    found: ObjectivesView
    failed: Sequence[JobView] = ()
    cost: CostReport | None = None
    quotas: Sequence[QuotaView] = ()
    damaged: Sequence[EventView] | None = (
        None  # checkpoints that were set aside; None: not looked for
    )
    scrubbed: Mapping[str, str] = field(
        default_factory=dict
    )  # checkpoint to `VALID` or what is wrong


def objective_row(one: ObjectiveReport) -> tuple[str, ...]:
    """An objective as a row below `HEADS`."""
    return (
        one.job_class,
        one.objective,
        _target(one),
        _percent(one.reached),
        _amount(one, one.total),
        _amount(one, one.bad),
        _percent(one.budget_left),
        one.state,
    )


def _target(one: ObjectiveReport) -> str:
    within = "" if one.limit_s is None else f" in {format_duration(one.limit_s)}"
    return f"{100 * one.target:.4g} %{within}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.4g} %"


def _amount(one: ObjectiveReport, amount: float) -> str:
    return f"{amount / 3600:.1f} slot-h" if one.objective == "goodput" else f"{amount:.0f}"


def sentences(found: ObjectivesView) -> list[str]:
    """A sentence for each objective that burns too fast or is spent."""
    lines = []
    for one in found.objectives:
        named = f"{one.objective} of {one.job_class}"
        lines += [
            f"{named}: the budget is spent {burn.long_rate:.1f} times too fast over "
            f"{format_duration(burn.long_s)} ({burn.severity})"
            for burn in one.burns
            if burn.fires
        ]
        if one.state == "spent":
            lines.append(f"{named}: the error budget of {found.days} days is spent")
    if found.truncated:
        lines.append("there are more jobs than were read: the oldest are left out")
    return lines


def review_text(facts: ReviewFacts) -> str:
    """The review as Markdown."""
    of = f" of {_cell(facts.project)}" if facts.project else ""
    lines = [f"# Review of the {facts.title}{of}", "", f"The last {facts.found.days} days.", ""]
    heads = tuple(head.capitalize() for head in HEADS)
    lines += _table(heads, [objective_row(one) for one in facts.found.objectives])
    lines += ["", "## Failed jobs", "", *_failures(facts.failed)]
    if facts.cost is not None:
        lines += ["", "## Cost", "", *_costs(facts.cost)]
        lines += ["", "## Quotas", "", *_quotas(facts.quotas)]
    if facts.damaged is not None:
        lines += ["", "## Checkpoints", "", *_checkpoints(facts.damaged, facts.scrubbed)]
    said = sentences(facts.found) or ["Nothing burns, and no budget is spent."]
    lines += ["", "## To discuss", "", *(f"* {one}" for one in (*said, *_questions(facts)))]
    return "\n".join(lines)


def _failures(failed: Sequence[JobView]) -> list[str]:
    """The failed jobs by reason and cause, the most frequent first."""
    if not failed:
        return ["None."]
    counts = Counter((one.reason.code, one.cause) for one in failed)
    newest: dict[tuple[str, str], str] = {}
    for one in failed:
        newest.setdefault((one.reason.code, one.cause), one.label)
    rows = [
        (code, cause or "–", str(count), newest[code, cause])
        for (code, cause), count in counts.most_common(_MOST_ROWS)
    ]
    return _table(("Reason", "Cause", "Jobs", "Newest"), rows)


def _costs(cost: CostReport) -> list[str]:
    rows = [(one.key, *_money(one.cost)) for one in cost.groups[:_MOST_ROWS]]
    rows.append(("all", *_money(cost.total)))
    return _table(("Project", "Slot-hours held", "Productive", "Lost", "US dollars"), rows)


def _money(cost: CostView) -> tuple[str, ...]:
    shares = (cost.accounts.productive, cost.wasted)
    percents = (_percent(one / cost.held if cost.held else None) for one in shares)
    return (f"{cost.held / 3600:.1f}", *percents, "–" if cost.usd is None else f"{cost.usd:.2f}")


def _quotas(quotas: Sequence[QuotaView]) -> list[str]:
    """The quotas that are nearly full."""
    full = [one for one in quotas if one.used_percent >= _FULL_PERCENT]
    if not full:
        return [f"None is used to {_FULL_PERCENT} % or more now."]
    rows = [(one.label, f"{one.used} of {one.limit}", f"{one.used_percent} %") for one in full]
    return _table(("Quota", "Used", "Share"), rows)


def _checkpoints(damaged: Sequence[EventView], scrubbed: Mapping[str, str]) -> list[str]:
    """The checkpoints that did not verify at a resume, and those that a scrub has read now."""
    lines = ["None was found damaged by a job."]
    if damaged:
        rows = [
            (
                job_label(one.job),
                one.at.strftime("%Y-%m-%d"),
                str(one.data.get("path", "–")),
                str(one.data.get("message", "–")),
            )
            for one in damaged[-_MOST_ROWS:]
        ]
        lines = _table(("Job", "Day", "Damaged checkpoint", "Why"), rows)
    if scrubbed:
        bad = [(where, why) for where, why in sorted(scrubbed.items()) if why != VALID]
        lines += ["", f"A scrub has read {len(scrubbed)} checkpoints: {len(bad)} are damaged."]
        if bad:
            lines += ["", *_table(("Damaged checkpoint", "Why"), bad[:_MOST_ROWS])]
    return lines


def _questions(facts: ReviewFacts) -> Iterator[str]:
    yield "Which failures were the platform's? `phalanx events JOB` shows what happened to one."
    if facts.cost is not None:
        yield "What was lost, and to what? `phalanx cost report --by job` names the jobs."
    if facts.damaged is not None and not facts.scrubbed:
        yield "Are the checkpoints of long jobs whole? With `--scrub WHERE` this review reads them."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]


def _cell(text: str | None) -> str:
    """Text that neither ends a cell nor begins a row."""
    return " ".join((text or "").replace("|", "\\|").split())
