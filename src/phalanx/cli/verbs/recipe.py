"""The verb recipe: the ready-made trainer as a job."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.session import Session
from phalanx.cli.terminal.options import (
    AllRanks,
    Detach,
    DryRun,
    NameOption,
    NodesOption,
    ProjectOption,
    RanksOption,
)
from phalanx.cli.verbs import submit
from phalanx.cli.verbs.programs import run_module
from phalanx.errors import UserError

if TYPE_CHECKING:
    from phalanx.cli.client.run_spec import RunPlan
    from phalanx.schemas.spec.study import StudySpec

_MODULE = "phalanx.train.programs.recipes"
_SEARCH = "Search"
NumTrials = Annotated[
    int | None,
    typer.Option(
        "--num-trials", min=1, rich_help_panel=_SEARCH, help="Run this number of trials as a study."
    ),
]
GpusPerTrial = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-trial",
        min=1,
        rich_help_panel=_SEARCH,
        help="Slots of each trial, instead of -n; one by default.",
    ),
]
SpaceFile = Annotated[
    Path | None,
    typer.Option(
        "--search-space",
        metavar="FILE",
        rich_help_panel=_SEARCH,
        help="The settings that trials vary: YAML, a space alone or a search of any tool.",
    ),
]
recipe_app = typer.Typer(
    name="recipe", no_args_is_help=True, help="Train known models with the ready-made trainer."
)


@recipe_app.command(
    "train",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="`phalanx recipe flags` lists the trainer's own flags, which are accepted here as well.",
)
def train(  # noqa: PLR0913 - one parameter for each flag
    ctx: typer.Context,
    ranks: RanksOption = None,
    nodes: NodesOption = None,
    name: NameOption = None,
    project: ProjectOption = None,
    num_trials: NumTrials = None,
    gpus_per_trial: GpusPerTrial = None,
    search_space: SpaceFile = None,
    detach: Detach = False,
    all_ranks: AllRanks = False,
    dry_run: DryRun = False,
) -> None:
    """Train ResNet-18/50/101, ViT-B/16, a GPT or a BERT on images or a text, as a job of N ranks.

    With --num-trials and --search-space it is a study: trials vary the settings in the file.
    """
    session: Session = ctx.obj
    given = (ranks, nodes, name, project)
    wanted = _wanted_search(num_trials, gpus_per_trial, search_space, given, all_ranks)
    if wanted is not None:
        _search(session, ctx.args, wanted, given, detach=detach, dry_run=dry_run)
        return
    planned = _planned(session, ctx.args, _checked(session, ctx.args), given)
    then = submit.SHOW if dry_run else submit.after(detach, all_ranks)
    submit.submit_planned(session, planned, then)


@recipe_app.command("flags")
def flags() -> None:
    """List the flags of the trainer."""
    run_module(_MODULE, ["--help"])


@dataclass(frozen=True, slots=True)
class Search:
    """The flags of a search."""

    num_trials: int
    slots_per_trial: int | None
    space: Path


_Given = tuple[int | None, str | None, str | None, str | None]


def _wanted_search(
    num_trials: int | None, slots: int | None, space: Path | None, given: _Given, all_ranks: bool
) -> Search | None:
    """The search that the flags ask for; None without one. Raises UserError for half of one."""
    flags = {"--num-trials": num_trials, "--gpus-per-trial": slots, "--search-space": space}
    named = [flag for flag, value in flags.items() if value is not None]
    if not named:
        return None
    if num_trials is None or space is None:
        hint = "write --num-trials 20 --search-space space.yaml, or -n for the ranks of one job"
        said = "a search needs both --num-trials and --search-space"
        raise UserError(f"{', '.join(named)}: {said}", hint)
    ranks, nodes, *_ = given
    if slots is not None and (ranks is not None or nodes is not None):
        other = "-n" if ranks is not None else "--nodes"
        said = f"--gpus-per-trial and {other}: both say how large a trial is"
        raise UserError(said, "give one of them")
    if all_ranks:
        said = "--all-ranks: a study is followed, not the output of its ranks"
        raise UserError(said, "`phalanx logs JOB` shows that of one trial")
    return Search(num_trials, slots, space)


def _search(
    session: Session,
    words: list[str],
    wanted: Search,
    given: _Given,
    *,
    detach: bool,
    dry_run: bool,
) -> None:
    """Submit the study and follow it, or print it."""
    from phalanx.cli.client.invocation import forward_environment, protects_secrets
    from phalanx.cli.verbs.studies.sweep import submit_study, with_commit
    from phalanx.schemas.api.studies import SubmitStudyRequest
    from phalanx.schemas.spec.document import to_yaml
    from phalanx.schemas.spec.study import resolved_study, validate_study
    from phalanx.schemas.spec.study_checks import end_values
    from phalanx.schemas.spec.study_document import load_space

    space = load_space(session.invocation.cwd / wanted.space)
    parameters = validate_study({"objective": "any", "space": space}).space
    values = {name: end_values(one) for name, one in parameters.items()}
    checked = _checked(session, words, values)
    planned = _planned(session, words, _with_slots(checked, wanted), given)
    document = study_document(planned, checked["study"], space, wanted.num_trials)
    spec: StudySpec = validate_study(document)
    if planned.root is not None:
        spec = with_commit(spec, planned.root)
    invocation = session.invocation
    forwarded = forward_environment(invocation.env, [], protected=protects_secrets(session.url))
    request = SubmitStudyRequest(
        spec=resolved_study(spec),
        kind="run",
        caller_cwd=str(invocation.cwd),
        caller_env=forwarded.env,
        owner=invocation.owner(),
    )
    with session.client() as client:
        client.studies.check(request)
        if dry_run:
            print(to_yaml(document), end="")
            return
        submit.note_forwarded(session, forwarded)
        submit_study(session, client, request, planned.root, detach=detach)


def _with_slots(checked: dict[str, Any], wanted: Search) -> dict[str, Any]:
    """What the trainer says about its job, with the slots of a trial. Raises UserError."""
    resources, slots = checked["resources"], wanted.slots_per_trial
    if slots is None:
        return checked
    if "slots_per_node" in resources:
        said = "--gpus-per-trial and --num-workers: both say how large a trial is"
        raise UserError(said, "give one of them")
    per_rank = int(resources.get("slots_per_rank", 1))
    if slots % per_rank:
        said = f"--gpus-per-trial {slots}: is no multiple of --gpus-per-worker, {per_rank}"
        raise UserError(said, f"write {per_rank} or {2 * per_rank}")
    return {**checked, "resources": {**resources, "slots_per_node": slots}}


def study_document(
    planned: RunPlan, study: Mapping[str, Any], space: Mapping[str, Any], num_trials: int
) -> dict[str, Any]:
    """The study of a search, as the file that `phalanx sweep` reads."""
    job = planned.spec.model_dump(mode="json", exclude_unset=True)
    name, resources = job.pop("name"), job["resources"]
    if "accelerators" in resources:  # the placement chooses the shape
        resources = {k: v for k, v in resources.items() if k not in ("nodes", "slots_per_node")}
    return {
        "schema": 1,
        "kind": "study",
        "name": name,
        "objective": study["objective"],
        "search": study["search"],
        "space": dict(space),
        "trials": {"max": num_trials},
        **({"rungs": study["rungs"]} if "rungs" in study else {}),
        "job": {**job, "resources": resources},
    }


def _checked(
    session: Session, words: list[str], values: Mapping[str, list[Any]] | None = None
) -> dict[str, Any]:
    """The spec keys that the flags imply; exits when the trainer refuses them.

    With `values`, the bounds or choices of each parameter of a search, those of its study too.
    """
    check = "--check=job" if values is None else "--check=study"
    command = [session.invocation.python, "-m", _MODULE, *words, check]
    done = subprocess.run(
        command,
        input=json.dumps(values),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=session.invocation.cwd,
    )
    if done.returncode:
        raise typer.Exit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _planned(
    session: Session,
    words: list[str],
    checked: dict[str, Any],
    given: _Given,
) -> RunPlan:
    from phalanx.cli.client.run_spec import RunFlags, plan_run

    ranks, nodes, name, project = given
    resources = checked["resources"]
    per_rank = int(resources.get("slots_per_rank", 1))
    if ranks is None and "slots_per_node" in resources:
        ranks = int(resources["slots_per_node"]) // per_rank
    flags_ = RunFlags(
        module=_MODULE,
        ranks_per_node=ranks,
        nodes=nodes,
        name=name or checked["name"],
        project=project,
        defaults={
            "checkpoint": checked["checkpoint"],
            "resources": {"slots_per_rank": per_rank},
        },
    )
    return plan_run(words, flags_, session.invocation)
