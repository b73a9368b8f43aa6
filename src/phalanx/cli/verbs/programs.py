"""Verbs that run as child processes, so that the command line need not import torch or the server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import typer

from phalanx.cli.client.session import Session

# The child parses everything after the verb, `--help` included.
PASS_ARGUMENTS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
    # A `--` between the program's options and a script's is passed to the program.
    "allow_interspersed_args": False,
}


_ARGPARSE_USAGE = 2


def run_module(module: str, words: list[str], env: Mapping[str, str] | None = None) -> None:
    """Run a module of Phalanx in a child process and exit with its code."""
    try:
        done = subprocess.run([sys.executable, "-m", module, *words], check=False, env=env)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    # argparse exits with 2 for a wrong option; `phalanx` always exits with 1.
    raise typer.Exit(1 if done.returncode == _ARGPARSE_USAGE else done.returncode)


def data(ctx: typer.Context) -> None:
    """Index, verify and pack training data: data index PATH, data verify PATH, data pack PATH OUT."""
    run_module("phalanx.train.programs.data", ctx.args or ["--help"])


def plan(ctx: typer.Context) -> None:
    """Estimate a script's memory and step time for every layout: plan SCRIPT --world 8xH100."""
    run_module("phalanx.train.programs.planning", ctx.args or ["--help"])


def simulate(ctx: typer.Context) -> None:
    """Simulate scheduling policies on past jobs, a trace or generated jobs, and compare them."""
    session: Session = ctx.obj
    env = dict(session.invocation.env)
    # `--write` sets the policy at the control plane that the options of this command select.
    for name, value in (("PHALANX_URL", session.url), ("PHALANX_TOKEN", session.token)):
        if value:
            env[name] = value
    run_module("phalanx.sim", ["--home", str(session.home), *ctx.args], env)


def operator(ctx: typer.Context) -> None:
    """Serve PyTorchJobs, JobSets and Jobs of a Kubernetes cluster as jobs of the control plane."""
    session: Session = ctx.obj
    env = dict(session.invocation.env)
    for name, value in (
        ("PHALANX_URL", session.url),
        ("PHALANX_TOKEN", session.token),
        ("PHALANX_CA_FILE", session.ca_file and str(session.invocation.cwd / session.ca_file)),
    ):
        if value:
            env[name] = value
    sys.stdout.flush()
    # In place of this process: signals of a container reach the operator.
    os.execve(sys.executable, [sys.executable, "-m", "phalanx.operator", *ctx.args], env)
