"""`python -m phalanx.sim`: replay a trace, past jobs, or generated jobs under one or more policies.

Prints tables, or JSON with `--json`. Exit code 1 with one line for a bad request.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from phalanx.core.scheduling import DEFAULT_POLICY, PURPOSES
from phalanx.errors import NotFound, PlatformError, UserError
from phalanx.kit.clock import SystemClock
from phalanx.kit.units import parse_duration
from phalanx.sim import plots
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob
from phalanx.sim.output.report import ProjectRow, RunFigures
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.recommend import Recommendation, project_file, recommend
from phalanx.sim.scenario import (
    Outcome,
    Scenario,
    changed,
    planner_named,
    run,
    whole,
    with_project,
)
from phalanx.sim.workload import generated, history, models, traces

_COLUMNS = (
    ("policy", "policy", "{}"),
    ("jobs", "num_done", "{}"),
    ("failed", "num_failed", "{}"),
    ("mean delay h", "delay_h", "{:.3f}"),
    ("p50", "delay_p50_h", "{:.3f}"),
    ("p99", "delay_p99_h", "{:.2f}"),
    ("max", "delay_max_h", "{:.1f}"),
    ("gangs >= 8", "gang_delay_h", "{:.2f}"),
    ("makespan h", "makespan_h", "{:.1f}"),
    ("useful %", "useful", "{:.1%}"),
    ("fragmented %", "fragmented", "{:.1%}"),
    ("evictions", "preemptions", "{}"),
    ("lost GPU h", "lost_h", "{:.0f}"),
    ("slowed gangs %", "slowed_percent", "{:.1f}"),
    ("pass p99 ms", "pass_p99_ms", "{:.1f}"),
)
_COST_COLUMNS = (("cost", "cost", "{:.0f}"), ("per useful GPU h", "cost_per_useful_h", "{:.2f}"))
_PROJECT_COLUMNS = (
    ("project", "project", "{}"),
    ("jobs", "num_jobs", "{}"),
    ("mean wait h", "wait_h", "{:.3f}"),
    ("p99", "wait_p99_h", "{:.2f}"),
    ("mean delay h", "delay_h", "{:.3f}"),
    ("p99", "delay_p99_h", "{:.2f}"),
    ("evictions", "preemptions", "{}"),
    ("useful %", "useful", "{:.1%}"),
    ("GPU h", "slot_h", "{:.0f}"),
    ("share", "share", "{:.1%}"),
    ("cost", "cost", "{:.0f}"),
)
FORMATS = ("philly", "llm", "tiresias", "sia", "openb", "swf", "phalanx")
_SUFFIXES = {".swf": "swf", ".swf.gz": "swf", ".jsonl": "phalanx"}
MODELS = ("research", "training", "lublin", "downey")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="phalanx simulate", description="Compare scheduling policies by simulation."
    )
    jobs = made.add_argument_group("jobs (default: generated ones)")
    jobs.add_argument("--trace", type=Path, help="a trace file")
    jobs.add_argument(
        "--format",
        choices=FORMATS,
        help="format of --trace; default: by its suffix (.swf, .jsonl), else philly",
    )
    jobs.add_argument("--past", action="store_true", help="replay the past jobs of --home")
    jobs.add_argument("--home", type=Path, default=Path.home() / ".phalanx", help="home of --past")
    jobs.add_argument("--since", default="30d", help="maximum age of past jobs")
    jobs.add_argument("--save-trace", type=Path, help="write the jobs to this trace file")
    jobs.add_argument("--jobs", type=int, default=1000, help="number of jobs to generate or read")
    jobs.add_argument(
        "--load", type=float, default=0.9, help="load of generated jobs, as a part of the slots"
    )
    jobs.add_argument("--seed", type=int, default=0, help="seed of generated jobs")
    jobs.add_argument("--model", choices=MODELS, default="research", help="model of generated jobs")
    where = made.add_argument_group("cluster")
    where.add_argument("--nodes", type=int, default=16, help="number of nodes")
    where.add_argument("--slots-per-node", type=int, default=8, help="slots of each node")
    where.add_argument("--rack", type=int, default=16, help="nodes of each rack")
    where.add_argument("--topology", type=Path, help="CSV file: host, core, agg, tor")
    where.add_argument("--quota", action="append", default=[], metavar="PROJECT=SLOTS")
    where.add_argument("--guarantee", action="append", default=[], metavar="PROJECT=SLOTS")
    where.add_argument(
        "--prefer", default="", metavar="LEVEL", help="preferred level of gangs, or none"
    )
    where.add_argument("--patience", default="", help="how long gangs wait for that level")
    where.add_argument("--price", type=float, default=0.0, help="US dollars per slot and hour")
    where.add_argument("--failures", type=float, default=0.0, help="factor on published rates")
    where.add_argument("--kill", action="store_true", help="preempt without a save")
    _add_comparison(made.add_argument_group("comparison"))
    return made


def _add_comparison(how: argparse._ArgumentGroup) -> None:
    """Add the options that say what to compare, and how to show it."""
    how.add_argument(
        "--policy", default="phalanx,fifo-skip", help="comma-separated policies, or `all`"
    )
    how.add_argument(
        "--what-if", action="append", default=[], metavar="nodes=+4", help="also run this change"
    )
    how.add_argument(
        "--planner",
        metavar="NAME",
        help="named policy of the planner; default: with --past the one set at the control plane of "
        f"--home, else {DEFAULT_POLICY}",
    )
    how.add_argument(
        "--recommend",
        action="store_true",
        help="compare the named policies and other quotas for each project, and recommend one; "
        "--planner is the present one",
    )
    how.add_argument(
        "--write",
        action="store_true",
        help="with --recommend: set the policy of the control plane of --home, or of PHALANX_URL",
    )
    how.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a plot")
    how.add_argument("--audit", action="store_true", help="check all invariants at every pass")
    how.add_argument("--json", action="store_true", help="print JSON")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    asked = parser().parse_args(arguments)
    try:
        if asked.recommend:
            base = _scenario(asked)
            found = recommend(base, _jobs(asked, base), _say)
            _say("")
            print(_recommended(asked, base.planner, found))  # noqa: T201
            if asked.write:
                _set_policy(asked.home, found.planner)
            return 0
        if asked.write:
            raise UserError("--write needs --recommend")
        outcomes = compare(asked)
        if asked.plot is not None:
            _write(asked.plot, plots.svg(outcomes))
    except PlatformError as error:
        hint = f"\n  {error.hint}" if error.hint else ""
        print(f"error: {error.message}{hint}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    print(_json(outcomes) if asked.json else _tables(outcomes, asked.price > 0))  # noqa: T201
    return 0


def compare(asked: argparse.Namespace) -> list[Outcome]:
    """One outcome for every policy and every what-if. Raises UserError for a bad request."""
    names = list(POLICIES) if asked.policy == "all" else asked.policy.split(",")
    base = _scenario(asked)
    plain = [changed(base, f"policy={name}") for name in names]
    scenarios = [replace(scenario, label="") for scenario in plain]
    for text in asked.what_if:
        # A change of policy is one more row, not one for every policy.
        wanted = plain[:1] if "policy=" in text or "planner=" in text else plain
        scenarios += [changed(scenario, text) for scenario in wanted]
    jobs = _jobs(asked, base)
    if asked.save_trace is not None:
        history.save(asked.save_trace, jobs)
    outcomes = []
    for number, scenario in enumerate(scenarios, start=1):
        _say(f"[{number}/{len(scenarios)}] {scenario.policy}{scenario.label}: {len(jobs)} jobs …")
        outcomes.append(run(scenario, jobs, 1 if asked.audit else 0))
    _say("")
    return outcomes


def _recommended(asked: argparse.Namespace, now: str, found: Recommendation) -> str:
    """The recommendation as text or JSON. `now` is the present policy."""
    if asked.json:
        rows = json.loads(_json([trial.outcome for trial in found.trials]))
        said = {"policy": found.planner, "command": found.command(), "reasons": found.reasons}
        quotas = {"project_file": project_file(found.projects) if found.projects else None}
        return json.dumps(said | quotas | {"trials": rows}, indent=1)
    lines = [_tables([trial.outcome for trial in found.trials], asked.price > 0)]
    purpose = PURPOSES[found.planner]
    lines.append(f"\nrecommended: {found.planner} (now {now}): {purpose}")
    lines += [f"  {reason}" for reason in found.reasons]
    if not asked.write:
        lines.append(f"to apply it: {found.command()}")
    if found.projects:
        lines.append("quotas that harm no project: phalanx projects apply -f FILE with")
        lines.append(project_file(found.projects).rstrip())
    return "\n".join(lines)


def _set_policy(home: Path, planner: str) -> None:
    """Set the policy of a control plane by a command of its own. Raises UserError where it fails."""
    words = ["--home", str(home), "scheduler", "policy", "set", planner]
    done = subprocess.run(
        [sys.executable, "-m", "phalanx.cli", *words], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise UserError(f"--write: {planner} was not set: {done.stderr.strip()}")
    print(f"set at the control plane: {planner}", file=sys.stderr)  # noqa: T201


def _say(text: str) -> None:
    """Show progress on a terminal, in one line that the next call replaces."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)  # noqa: T201


def _scenario(asked: argparse.Namespace) -> Scenario:
    if asked.nodes < 1 or asked.slots_per_node < 1 or asked.rack < 1 or asked.jobs < 1:
        raise UserError("--nodes, --slots-per-node, --rack and --jobs must be at least 1")
    if not asked.load > 0 or asked.price < 0 or asked.failures < 0:
        raise UserError("--load must be above 0; --price and --failures must not be negative")
    stored = history.past_policy(asked.home) if asked.past and asked.trace is None else None
    made = Scenario(
        num_nodes=asked.nodes,
        slots_per_node=asked.slots_per_node,
        rack=asked.rack,
        price=asked.price,
        failures=asked.failures,
        costs=Costs(graceful=not asked.kill),
        seed=asked.seed,
        topology=tuple(traces.lingjun_nodes(asked.topology, asked.slots_per_node))
        if asked.topology is not None
        else (),
        planner=planner_named(asked.planner or stored or DEFAULT_POLICY),
    )
    if asked.past and asked.trace is None and not (asked.quota or asked.guarantee):
        made = replace(
            made,
            projects=tuple(history.past_projects(asked.home)),
            users=history.past_users(asked.home),
        )
    if asked.prefer:
        made = changed(made, f"prefer={asked.prefer}")
    if asked.patience:
        made = changed(made, f"patience={asked.patience}")
        made = replace(made, label="")
    for option, field in (("quota", "max_slots"), ("guarantee", "guaranteed_slots")):
        for text in getattr(asked, option):
            name, equals, value = text.partition("=")
            if not equals:
                raise UserError(f"--{option} {text}: write for example vision=64")
            made = with_project(made, name, **{field: whole(value, 0, f"{option}.{name}")})
    return made


def _jobs(asked: argparse.Namespace, base: Scenario) -> list[TraceJob]:
    size = asked.slots_per_node
    if asked.past and asked.trace is not None:
        raise UserError("--past and --trace exclude one another")
    if asked.past:
        return history.past_jobs(asked.home, SystemClock().now() - _ago_us(asked.since))
    if asked.trace is None:
        return _generated(asked)
    readers: dict[str, Callable[[], list[TraceJob]]] = {
        "philly": lambda: traces.philly(asked.trace, 0.0, float("inf"), size, seed=asked.seed),
        "llm": lambda: traces.llm_mix(asked.trace, size),
        "tiresias": lambda: traces.tiresias(asked.trace, size),
        "sia": lambda: traces.sia(asked.trace, size),
        "openb": lambda: traces.openb(asked.trace, size),
        "swf": lambda: traces.swf(asked.trace, size),
        "phalanx": lambda: history.read(asked.trace),
    }
    if not asked.trace.exists():
        raise NotFound(f"no trace at {asked.trace}")
    try:
        found = readers[_format(asked)]()[: asked.jobs]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{asked.trace} cannot be read: {error}") from None
    if not found:
        raise UserError(f"{asked.trace} has no job that can be replayed")
    return found


def _generated(asked: argparse.Namespace) -> list[TraceJob]:
    size, num, seed = asked.slots_per_node, asked.jobs, asked.seed
    num_slots = asked.nodes * size
    if asked.model in ("lublin", "downey"):
        make = models.lublin if asked.model == "lublin" else models.downey
        return make(num, num_slots, asked.load, size, seed)
    draw = generated.training if asked.model == "training" else generated.research
    return draw(num, asked.load * num_slots, size, seed)


def _format(asked: argparse.Namespace) -> str:
    name = asked.trace.name
    by_suffix = (known for end, known in _SUFFIXES.items() if name.endswith(end))
    return asked.format or next(by_suffix, "philly")


def _ago_us(text: str) -> int:
    try:
        return int(parse_duration(text) * 1e6)
    except ValueError as error:
        raise UserError(f"--since: {error}") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UserError(f"--plot {path}: {error.strerror}") from None


def _json(outcomes: Sequence[Outcome]) -> str:
    rows = [
        asdict(one.figures) | {"projects": [asdict(row) for row in one.projects]}
        for one in outcomes
    ]
    return json.dumps(rows, indent=1)


def _tables(outcomes: Sequence[Outcome], priced: bool) -> str:
    columns = (*_COLUMNS, *_COST_COLUMNS) if priced else _COLUMNS
    parts = [table([one.figures for one in outcomes], columns)]
    for one in outcomes:
        if len(one.projects) > 1:
            parts.append(f"\n{one.figures.policy}")
            parts.append(table(one.projects, _PROJECT_COLUMNS))
    return "\n".join(parts)


def table(
    rows: Sequence[RunFigures] | Sequence[ProjectRow],
    columns: Sequence[tuple[str, str, str]] = _COLUMNS,
) -> str:
    """The rows as aligned text."""
    cells = [[title for title, _, _ in columns]]
    cells += [[form.format(getattr(row, name)) for _, name, form in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = []
    for line in cells:
        first, *rest = zip(line, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in rest)]))
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
