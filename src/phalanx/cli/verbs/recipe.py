"""The verb recipe: the ready-made trainer as a job."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from phalanx.cli.client.run_spec import RunPlan

_MODULE = "phalanx.train.programs.recipes"
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
    detach: Detach = False,
    all_ranks: AllRanks = False,
    dry_run: DryRun = False,
) -> None:
    """Train ResNet-18/50/101, ViT-B/16, a GPT or a BERT on images or a text, as a job of N ranks."""
    session: Session = ctx.obj
    checked = _checked(session, ctx.args)
    planned = _planned(session, ctx.args, checked, (ranks, nodes, name, project))
    then = submit.SHOW if dry_run else submit.after(detach, all_ranks)
    submit.submit_planned(session, planned, then)


@recipe_app.command("flags")
def flags() -> None:
    """List the flags of the trainer."""
    run_module(_MODULE, ["--help"])


def _checked(session: Session, words: list[str]) -> dict[str, Any]:
    """The spec keys that the flags imply; exits when the trainer refuses them."""
    command = [session.invocation.python, "-m", _MODULE, *words, "--check"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, cwd=session.invocation.cwd
    )
    if done.returncode:
        raise typer.Exit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _planned(
    session: Session,
    words: list[str],
    checked: dict[str, Any],
    given: tuple[int | None, str | None, str | None, str | None],
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
