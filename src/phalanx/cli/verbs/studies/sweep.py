"""Verbs on studies: sweep FILE, its listings and results, its changes, and its export."""

from __future__ import annotations

import csv
import json as codec
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from phalanx.cli.client.session import Session, connected
from phalanx.cli.exits import NOT_FINISHED, code_of
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, Detach, duration
from phalanx.cli.terminal.output import note, number
from phalanx.cli.verbs.studies.follow import StudyFollower, best_text, left_text, params_text
from phalanx.errors import NotFound, Problem, SpecInvalid, UserError
from phalanx.kit.text import parse_study_label

if TYPE_CHECKING:
    from phalanx.schemas.api.studies import (
        AxisView,
        Scalar,
        StudyCheckView,
        StudyView,
        SubmitStudyRequest,
        TrialView,
    )
    from phalanx.schemas.spec.study import StudySpec
    from phalanx.sdk import PhalanxClient

_CHUNK = 2**20
_FIRST = "start"
StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", help="Number of the study, such as s-3 or 3.")
]


class _WithFirst(TyperGroup):
    """A group in which `sweep FILE` stands for `sweep start FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `start` before what is no verb of the group."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [_FIRST, *args]
        return super().parse_args(ctx, args)


sweep_app = typer.Typer(
    name="sweep",
    cls=_WithFirst,
    no_args_is_help=True,
    help="Search hyperparameters: `sweep FILE` starts a study; the verbs show and change one.",
)


def study_number(text: str) -> int:
    """The number in `s-3` or `3`. Raises NotFound for anything else."""
    num = parse_study_label(text)
    if num is None:
        said = "give its number, such as s-3; `phalanx sweep ls` lists studies"
        raise NotFound(f"{text!r} is not a study", said)
    return num


@sweep_app.command(_FIRST)
def start(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A study in YAML, or a search of another tool.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the study would do; submit nothing.")
    ] = False,
    detach: Detach = False,
    json: AsJson = False,
) -> None:
    """Submit a study and follow it; `sweep FILE` is short for it. Paths are relative to the file."""
    from phalanx.cli.client.foreign_specs import read_foreign, study_of
    from phalanx.schemas.spec.study_document import load_study

    session: Session = ctx.obj
    path = session.invocation.cwd / file
    foreign = read_foreign(path, {}, False, session.invocation)
    if foreign is not None and foreign.is_study:
        start_study(session, path, study_of(foreign, path), dry_run, detach=detach, json=json)
        return
    found = load_study(path)
    for line in found.translation.lines if found.translation else ():
        note(line)
    start_study(session, path, found.spec, dry_run, detach=detach, json=json)


def start_study(
    session: Session,
    path: Path,
    found: StudySpec,
    dry_run: bool,
    *,
    detach: bool,
    json: bool = False,
) -> None:
    """Submit the study of a file with the code beside it, and follow it; or show what it would do."""
    from phalanx.schemas.api.studies import SubmitStudyRequest
    from phalanx.schemas.spec.study import resolved_study

    root = _workdir(path, found)
    spec = with_commit(found, root)
    request = SubmitStudyRequest(spec=resolved_study(spec), owner=session.invocation.owner())
    session.begin()
    with session.client() as client:
        if dry_run:
            _show_check(client.studies.check(request), json)
            return
        if found.search.warm_start:
            _note_earlier(client.studies.check(request))
        code_root = None if spec.job is None else root
        submit_study(session, client, request, code_root, detach=detach, json=json)


def submit_study(
    session: Session,
    client: PhalanxClient,
    request: SubmitStudyRequest,
    root: Path | None,
    *,
    detach: bool,
    json: bool = False,
) -> None:
    """Submit a study with the code in `root`, follow it to its end, and exit as it ended."""
    from phalanx.cli.client.source_state import source_request

    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        archive = Path(folder) / "code.tar"
        code = None if root is None else _upload(session, client, root, archive)
        source = None if root is None else source_request(root)
        whole = request.model_copy(update={"code": code, "source": source})
        study = client.studies.submit(whole).study
        if detach:
            output.as_json(study) if json else print(study.label)
            return
        ended = _end(session, study)
        if json:
            output.as_json(ended)
    raise typer.Exit(code_of(ended))


def with_commit(spec: StudySpec, root: Path) -> StudySpec:
    """The study with the Git commit of its work directory as a label of its trials, if there is one."""
    from phalanx.cli.client.source_state import commit_of

    labels = (spec.job or {}).get("labels", {})
    if spec.job is None or not isinstance(labels, dict) or "git-commit" in labels:
        return spec
    commit = commit_of(root)
    more = {"labels": {**labels, "git-commit": commit}} if commit else {}
    return spec.model_copy(update={"job": {**spec.job, **more}})


def _workdir(path: Path, spec: StudySpec) -> Path:
    """The folder of a trial's code. Raises SpecInvalid."""
    named = str((spec.job or {}).get("workdir", "."))
    root = path.parent / named
    if not root.is_dir():
        said = "no such folder; the path is relative to the study file"
        raise SpecInvalid([Problem("job.workdir", said, named)])
    return root


def _upload(session: Session, client: PhalanxClient, root: Path, archive: Path) -> str:
    """Upload a snapshot of the code, and return its digest."""
    from phalanx.cli.client.snapshot import take

    snapshot = take(root, archive, excluded=[session.home])
    for said in snapshot.notes:
        note(f"snapshot: {said}")
    if not client.has_code(snapshot.digest):
        with open(archive, "rb") as file:
            client.put_code(snapshot.digest, iter(lambda: file.read(_CHUNK), b""))
    return snapshot.digest


def _note_earlier(view: StudyCheckView) -> None:
    for one in view.warm_start:
        out = f"; {one.dropped} more are outside of this space" if one.dropped else ""
        note(f"learns from {one.trials} trials of {one.study}{out}")


def _show_check(view: StudyCheckView, json: bool) -> None:
    if json:
        output.as_json(view)
        return
    _note_earlier(view)
    method = view.method + (f" ({view.method_reason})" if view.method_reason else "")
    cells = "continuous" if view.num_cells is None else f"{view.num_cells} different trials"
    share = None if view.share is None else f"{view.share:.0%} of training all trials to the end"
    unknown = "unknown; write `max_duration` in the job"
    hours = unknown if view.slot_hours is None else f"at most {number(view.slot_hours)}"
    output.facts(
        [
            ("method", method),
            ("space", cells),
            ("trials", f"{view.max_trials}, {view.parallel} at the same time"),
            ("slots", f"{view.slots_per_trial} for each trial"),
            ("training", share),
            ("slot-hours", hours),
        ]
    )
    if view.rungs:
        rows = ([one.until, one.trials, one.units, number(one.slot_hours)] for one in view.rungs)
        output.table(["RUNG", "TRIALS", "UNITS", "SLOT-HOURS"], rows, "no rungs")


# -- follow ----------------------------------------------------------------------------------------


@sweep_app.command("follow")
def follow(ctx: typer.Context, study: StudyName, json: AsJson = False) -> None:
    """Follow a study from now on until it ends; Ctrl-C leaves it running."""
    session: Session = ctx.obj
    num = study_number(study)
    with connected(ctx) as client:
        view = client.studies.get(num)
    ended = _end(session, view, from_now=True)
    if json:
        output.as_json(ended)
    raise typer.Exit(code_of(ended))


def _end(session: Session, study: StudyView, *, from_now: bool = False) -> StudyView:
    """Follow a study to its end, and print how it ended."""
    ended = StudyFollower(session, study).run(from_now=from_now)
    said = f" ({ended.reason.message})" if ended.reason.message else ""
    final = _final(ended)
    note(f"{ended.label} {ended.state}{said}: best {best_text(ended)}")
    if ended.best is not None:
        note(f"  params      {params_text(dict(ended.best.params))}")
        if ended.best.checkpoint:
            note(f"  checkpoint  {ended.best.checkpoint}")
    for name, value in (("retrained", final), *_cost(ended)):
        if value:
            note(f"  {name:<10}  {value}")
    return ended


def _final(study: StudyView) -> str | None:
    """Mean and deviation of the final retraining; None without one."""
    one = study.final
    if one is None:
        return None
    spread = "" if one.deviation is None else f" ± {number(one.deviation)}"
    return f"{number(one.mean)}{spread} over {len(one.values)} of {len(one.trials)} seeds"


# -- listings --------------------------------------------------------------------------------------

_STUDY_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "STUDY": lambda one: one.label,
    "NAME": lambda one: one.name,
    "STATE": lambda one: one.state,
    "METHOD": lambda one: one.method,
    "TRIALS": lambda one: f"{one.num_over}/{one.max_trials}",
    "BEST": lambda one: best_text(one),
    "SLOT-HOURS": lambda one: number(one.cost.slot_hours),
    "AGE": lambda one: output.ago(one.submitted_at),
}
# Statuses that need no explanation in a table.
_PLAIN = ("completed", "running", "waiting", "suggested", "asked")
_TRIAL_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "TRIAL": lambda one: one.label,
    "STATUS": lambda one: one.status,
    "VALUE": lambda one: number(one.value),
    "UNIT": lambda one: one.unit,
    "JOB": lambda one: None if one.job is None else f"j-{one.job}",
    "SLOT-S": lambda one: f"{one.slot_s:.0f}",
    "WASTE-S": lambda one: _waste(one),
    "PARAMS": lambda one: params_text(dict(one.params)),
    "REASON": lambda one: None if one.status in _PLAIN else one.reason,
}


def _waste(one: TrialView) -> str | None:
    """Slot-seconds that interruptions of a trial have cost; None for none."""
    lost = 0.0 if one.waste is None else sum(one.waste.model_dump().values())
    return f"{lost:.0f}" if lost else None


@sweep_app.command("ls")
def list_studies(ctx: typer.Context, json: AsJson = False) -> None:
    """List the last 100 studies, newest first."""
    with connected(ctx) as client:
        found = client.studies.list().studies
    output.listing(found, json, _STUDY_COLUMNS, "no studies yet")


@sweep_app.command("show")
def show(ctx: typer.Context, study: StudyName, json: AsJson = False) -> None:
    """Show one study: its state, its best trial, its rungs and its cost."""
    with connected(ctx) as client:
        view = client.studies.get(study_number(study))
    if json:
        output.as_json(view)
        return
    counts = ", ".join(f"{count} {status}" for status, count in view.trials.items() if count)
    output.facts(
        [
            ("study", f"{view.label} {view.name}"),
            ("state", view.state),
            ("reason", view.reason.message),
            ("method", view.method),
            ("objective", f"{view.objective.goal} {view.objective.metric}"),
            ("trials", f"{view.num_over} of {view.max_trials} ended: {counts}"),
            ("best", best_text(view)),
            ("params", None if view.best is None else params_text(dict(view.best.params))),
            ("final", _final(view)),
            ("expected end", left_text(view)),
            *_cost(view),
        ]
    )
    if view.rungs:
        rows = ([one.bracket, one.until, one.reported, one.promoted] for one in view.rungs)
        output.table(["BRACKET", "RUNG", "REPORTED", "PROMOTED"], rows, "no rungs")


@sweep_app.command("trials")
def trials(ctx: typer.Context, study: StudyName, json: AsJson = False) -> None:
    """List the trials of a study, in number order."""
    with connected(ctx) as client:
        found = list(client.studies.all_trials(study_number(study)))
    output.listing(found, json, _TRIAL_COLUMNS, "no trials yet")


@sweep_app.command("best")
def best(ctx: typer.Context, study: StudyName, json: AsJson = False) -> None:
    """Show the best trial of a study; exits with 101 while there is none."""
    with connected(ctx) as client:
        found = client.studies.get(study_number(study)).best
    if found is None:
        note("no trial has reported a finite value yet")
        raise typer.Exit(NOT_FINISHED)
    output.listing([found], False, _TRIAL_COLUMNS, "") if not json else output.as_json(found)


@sweep_app.command("results")
def results(ctx: typer.Context, study: StudyName, json: AsJson = False) -> None:
    """Show the best trial, how much each parameter matters, and what the study cost and saved."""
    with connected(ctx) as client:
        found = client.studies.results(study_number(study))
    if json:
        output.as_json(found)
        return
    view, best = found.study, found.study.best
    output.facts(
        [
            ("best", best_text(view)),
            ("params", None if best is None else params_text(dict(best.params))),
            ("checkpoint", None if best is None else best.checkpoint),
            ("job", None if best is None or best.job is None else f"j-{best.job}"),
            *_cost(view),
        ]
    )
    at = "" if found.unit is None else f" at unit {found.unit}"
    rows = (
        [one.name, "-" if one.importance is None else f"{one.importance:.0%}", _range(one)]
        for one in found.axes
    )
    output.table(["PARAMETER", "IMPORTANCE", "RANGE"], rows, "no parameters")
    if found.axes and found.axes[0].importance is None:
        note(f"importance needs 10 trials with a value{at}; there are {len(found.lines)}")
    else:
        note(f"importance: PED-ANOVA over {len(found.lines)} trials{at}")


def _cost(view: StudyView) -> list[tuple[str, str | None]]:
    """What a study used, what of it was of no use, and what stopping trials early has saved."""
    cost = view.cost
    wasted = f", {number(cost.wasted_slot_hours)} of them in failed and diverged trials"
    saved = cost.saved_slot_hours
    parts = [
        ("redone", cost.redone_slot_hours),
        ("lost to failures", cost.lost_to_failure_slot_hours),
        ("lost to preemptions", cost.lost_to_preemption_slot_hours),
    ]
    interrupted = ", ".join(f"{number(hours)} {name}" for name, hours in parts if hours)
    usd = None if cost.usd is None else f"{cost.usd:.2f}"
    return [
        ("slot-hours", number(cost.slot_hours) + (wasted if cost.wasted_slot_hours else "")),
        ("interrupted", interrupted or None),
        ("usd", usd),
        ("saved", None if saved is None else f"{number(saved)} slot-hours by stopping early"),
    ]


def _range(axis: AxisView) -> str:
    if axis.values is not None:
        return ", ".join(str(one) for one in axis.values)
    scale = ", logarithmic" if axis.log else ""
    return f"{number(axis.low)} to {number(axis.high)}{scale}"


_WASTE_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "TRIAL": lambda one: one.label,
    "STATUS": lambda one: one.status,
    "SLOT-S": lambda one: f"{one.slot_s:.0f}",
    "REDONE": lambda one: _part(one, "redone"),
    "FAILURES": lambda one: _part(one, "lost_to_failure"),
    "PREEMPTIONS": lambda one: _part(one, "lost_to_preemption"),
    "USD": lambda one: None if one.usd is None else f"{one.usd:.2f}",
}


def _part(one: TrialView, name: str) -> str | None:
    lost = 0.0 if one.waste is None else getattr(one.waste, name)
    return f"{lost:.0f}" if lost else None


@sweep_app.command("cost")
def cost(ctx: typer.Context, study: StudyName, json: AsJson = False) -> None:
    """Show what each trial used, and what failures, repeated steps and preemptions have cost it."""
    num = study_number(study)
    with connected(ctx) as client:
        view = client.studies.get(num)
        found = list(client.studies.all_trials(num))
    if json:
        output.as_json({"cost": view.cost.model_dump(mode="json"), "trials": _plain(found)})
        return
    output.table(
        list(_WASTE_COLUMNS),
        ([cell(one) for cell in _WASTE_COLUMNS.values()] for one in found),
        "no trials yet",
    )
    for name, value in _cost(view):
        if value:
            note(f"{name:<11}  {value}")


def _plain(found: list[TrialView]) -> list[dict[str, Any]]:
    names = {"number", "label", "status", "job", "slot_s", "usd", "waste"}
    return [one.model_dump(mode="json", include=names) for one in found]


# -- changes ---------------------------------------------------------------------------------------


@sweep_app.command("pause")
def pause(ctx: typer.Context, study: StudyName) -> None:
    """Pause a study: its trials save and leave their slots."""
    with connected(ctx) as client:
        _changed(client.studies.pause(study_number(study)))


@sweep_app.command("resume")
def resume(ctx: typer.Context, study: StudyName) -> None:
    """Resume a paused study: its trials go on from their checkpoints."""
    with connected(ctx) as client:
        _changed(client.studies.resume(study_number(study)))


@sweep_app.command("stop")
def stop(
    ctx: typer.Context,
    study: StudyName,
    finish: Annotated[
        bool, typer.Option("--finish", help="Begin no more trials; let those that have begun end.")
    ] = False,
) -> None:
    """Stop a study: its trials save and end."""
    with connected(ctx) as client:
        _changed(client.studies.stop(study_number(study), finish=finish))


@sweep_app.command("extend")
def extend(
    ctx: typer.Context,
    study: StudyName,
    max_trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Trials in all.")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option("--parallel", min=1, help="Trials at the same time.")
    ] = None,
    slot_hours: Annotated[
        float | None, typer.Option("--slot-hours", help="Slot-hours in all.")
    ] = None,
    usd: Annotated[float | None, typer.Option("--usd", help="US dollars in all.")] = None,
    lasting: Annotated[
        str | None, typer.Option("--duration", help="Time from the first start, such as 2h.")
    ] = None,
) -> None:
    """Set new limits of a study; one that has ended goes on."""
    from phalanx.schemas.api.studies import ExtendStudyRequest

    if all(one is None for one in (max_trials, parallel, slot_hours, usd, lasting)):
        raise UserError("no new limit is given", "write one, such as --trials 40")
    limits = ExtendStudyRequest.model_construct(
        max_trials=max_trials,
        parallel=parallel,
        slot_hours=slot_hours,
        usd=usd,
        duration_s=duration("--duration", lasting),
    )
    with connected(ctx) as client:
        _changed(client.studies.extend(study_number(study), limits))


@sweep_app.command("add-trial")
def add_trial(
    ctx: typer.Context,
    study: StudyName,
    params: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="The params, as in lr=0.01.")
    ],
) -> None:
    """Add a trial with given params, which starts before suggested ones."""
    given = dict(map(_param, params))
    with connected(ctx) as client:
        print(client.studies.add_trial(study_number(study), given).label)


def _param(text: str) -> tuple[str, Scalar]:
    """The name and the value of `lr=0.01`; a value that is no JSON is text. Raises UserError."""
    name, sign, said = text.partition("=")
    try:
        value = codec.loads(said)
    except ValueError:
        value = said
    finite = not isinstance(value, float) or abs(value) < float("inf")
    if not sign or not name or isinstance(value, dict | list) or not finite:
        raise UserError(f"{text!r} is no param", "write NAME=VALUE, as in lr=0.01")
    return name, value


def _changed(view: StudyView) -> None:
    print(f"{view.label} {view.state}")


# -- export ----------------------------------------------------------------------------------------


@sweep_app.command("export")
def export(
    ctx: typer.Context,
    study: StudyName,
    format: Annotated[
        Literal["csv", "json", "parquet"],
        typer.Option("--format", help="csv, json, or parquet (needs pyarrow)."),
    ] = "csv",
) -> None:
    """Print all trials of a study as a table for other programs."""
    write_parquet = _parquet_writer() if format == "parquet" else None
    with connected(ctx) as client:
        found = list(client.studies.all_trials(study_number(study)))
    if format == "json":
        output.as_json(found)
    elif write_parquet is not None:
        write_parquet(*_table(found))
    else:
        names, rows = _table(found)
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(names)
        out.writerows(rows)


def _parquet_writer() -> Callable[[list[str], list[list[Any]]], None]:
    """Return a function that writes a table to standard output as Parquet. Raises UserError."""
    if sys.stdout.isatty():
        raise UserError("parquet is no text", "write it to a file: --format parquet > FILE")
    try:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]
        from pyarrow import parquet
    except ImportError:
        said = "install it: pip install 'phalanx[data]'; csv and json need nothing"
        raise UserError("parquet needs pyarrow, which is not installed", said) from None

    def write(names: list[str], rows: list[list[Any]]) -> None:
        columns = [
            pyarrow.array(_of_one_type([row[at] for row in rows])) for at in range(len(names))
        ]
        out = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.table(columns, names=names), out)
        sys.stdout.buffer.write(out.getvalue().to_pybytes())
        sys.stdout.buffer.flush()

    return write


def _of_one_type(values: list[Any]) -> list[Any]:
    """The values of a column, which has one type: numbers of both kinds are floats, a mixture is text."""
    kinds = {type(one) for one in values if one is not None}
    if len(kinds) < 2:
        return values
    numbers = kinds == {int, float}
    return [one if one is None else float(one) if numbers else str(one) for one in values]


def _table(rows: list[TrialView]) -> tuple[list[str], list[list[Any]]]:
    """Names of columns and a row for each trial; inactive params and missing values are None."""
    names = sorted({name for one in rows for name in one.params})
    facts_of = [
        "number",
        "status",
        "reason",
        "value",
        "unit",
        "until",
        "job",
        "checkpoint",
        "slot_s",
        "usd",
    ]
    made = [
        [*(getattr(one, name) for name in facts_of), *(one.params.get(name) for name in names)]
        for one in rows
    ]
    return ["trial", *facts_of[1:], *names], made
