"""Verbs that are programs of their own: run as a child, so that the command line stays light."""

from __future__ import annotations

import subprocess
import sys

import typer

# What stands behind the verb, `--help` included, is the program's to understand.
PASSED_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
    # A `--` between a program's own words and a script's is theirs to see.
    "allow_interspersed_args": False,
}


_ARGPARSE_USAGE = 2


def become(module: str, words: list[str]) -> None:
    """Run a module of ours to its end, and leave with its exit code."""
    try:
        done = subprocess.run([sys.executable, "-m", module, *words], check=False)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    # argparse says 2 for a wrong option; the command line says 1, as everywhere.
    raise typer.Exit(1 if done.returncode == _ARGPARSE_USAGE else done.returncode)


def data(ctx: typer.Context) -> None:
    """Index training data and check it: data index PATH, data verify PATH."""
    become("phalanx.train.programs.data", ctx.args or ["--help"])


def plan(ctx: typer.Context) -> None:
    """Estimate a script's memory and step time for every layout: plan SCRIPT --world 8xH100."""
    become("phalanx.train.programs.planning", ctx.args or ["--help"])


def simulate(ctx: typer.Context) -> None:
    """Replay past jobs, a trace or made-up jobs under scheduling policies, and compare them."""
    become("phalanx.sim", ["--home", str(ctx.obj.home), *ctx.args])
