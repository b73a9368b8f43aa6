"""The verbs that hand jobs in: run, submit."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.session import Session
from phalanx.cli.terminal.output import note

if TYPE_CHECKING:
    from phalanx.cli.client.invocation import ForwardedEnvironment
    from phalanx.cli.client.run_spec import Planned
    from phalanx.schemas.api.jobs import JobView
    from phalanx.schemas.spec.document import JobSpec
    from phalanx.sdk import PhalanxClient

_VIEW = "What is shown"
_CHUNK = 2**20
SHOW = "show"
AllRanks = Annotated[
    bool, typer.Option("--all-ranks", help="Output of all ranks.", rich_help_panel=_VIEW)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check it, print it with every default, start nothing.")
]


def run(  # noqa: PLR0913 (one parameter for each flag)
    ctx: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT | COMMAND [-- ARG...]", help="What every rank runs."),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", min=1, help="Ranks on each node.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="Nodes; 2..4 makes the job elastic.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", help="A Python module instead of a script.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="For people.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Its project.")] = None,
    pool: Annotated[
        list[str] | None, typer.Option("--pool", help="A pool it may run in; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable; may be repeated."),
    ] = None,
    every: Annotated[
        str | None, typer.Option("--checkpoint-every", help="10m, `500 steps` or `1 epoch`.")
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option("--framework", help="torch, jax, tensorflow, horovod, mpi, ray or none."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics", metavar="PATTERN", help="In lines: `step {step}: loss {loss}`, or json."
        ),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-directory", help="The script's own folder, kept as checkpoints."
        ),
    ] = None,
    max_duration: Annotated[
        str | None, typer.Option("--max-duration", help="The job fails after this long.")
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option("--priority", help="0 to 100, higher first; or low, normal, high, urgent."),
    ] = None,
    no_warm: Annotated[bool, typer.Option("--no-warm", help="Start every rank cold.")] = False,
    warm_import: Annotated[
        list[str] | None,
        typer.Option("--warm-import", help="Import it before ranks start; may be repeated."),
    ] = None,
    requirements: Annotated[
        str | None,
        typer.Option(
            "--requirements", metavar="FILE", help="Its packages come along: see `python`."
        ),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="REQUIREMENT", help="A package; may be repeated."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Submit and leave.")] = False,
    all_ranks: AllRanks = False,
    dry_run: DryRun = False,
) -> None:
    """Run a script or command as a job of N ranks, and follow it.

    Your environment (but for secrets) and your folder go along. Ctrl-C cancels, and waits until the
    ranks have saved; a second Ctrl-C leaves the job alone.
    """
    session: Session = ctx.obj
    from phalanx.cli.client.invocation import pack
    from phalanx.cli.client.run_spec import RunFlags, plan_run, split_env

    values, names = split_env(env or [])
    forwarded = pack(session.invocation.env, names)
    flags = RunFlags(
        module=module,
        ranks_per_node=ranks,
        nodes=nodes,
        name=name,
        project=project,
        env=values,
        checkpoint_every=every,
        checkpoint_directory=directory,
        framework=framework,
        metrics=metrics or (),
        max_duration=max_duration,
        priority=int(priority) if priority is not None and priority.isdigit() else priority,
        pool=pool or (),
        cold=no_warm,
        warm_imports=warm_import or (),
        requirements=requirements,
        packages=package or (),
    )
    planned = plan_run(command or [], flags, session.invocation)
    then = SHOW if dry_run else after(detach, all_ranks)
    submit_planned(session, planned, then, forwarded)


def submit_planned(
    session: Session, planned: Planned, then: str, forwarded: ForwardedEnvironment | None = None
) -> None:
    """Submit what `run` has planned, with the caller's environment, and then what `after` says.

    With `SHOW` it is only checked and printed.
    """
    from phalanx.cli.client.invocation import pack

    forwarded = forwarded or pack(session.invocation.env, [])
    _refuse_unsupported(planned.spec)
    if then == SHOW:
        _print_resolved(session, planned.spec)
        return
    # The control plane starts while the code is packed.
    session.begin()
    if forwarded.withheld:
        note(
            f"not taken along, as they look like secrets: {', '.join(forwarded.withheld)} "
            "(name one with --env NAME)"
        )
    if forwarded.odd:
        note(f"not taken along, as they are not UTF-8: {', '.join(forwarded.odd)}")
    request = {
        "kind": "run",
        "caller_cwd": str(session.invocation.cwd),
        "caller_env": forwarded.env,
        "owner": session.invocation.owner(),
    }
    _submit(session, planned.spec, planned.root, request, then)


def after(detach: bool, all_ranks: bool) -> str:
    """What comes after the submission: leave, rank 0's output, or that of all."""
    if detach:
        return "leave"
    return "all" if all_ranks else "first"


def submit(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job spec in YAML.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Stay and watch, as `run` does.")
    ] = False,
    all_ranks: AllRanks = False,
    dry_run: DryRun = False,
) -> None:
    """Submit a job from a spec file; paths in it are relative to the file."""
    session: Session = ctx.obj
    from phalanx.schemas.spec.document import load_spec

    spec = load_spec(session.invocation.cwd / file if not file.is_absolute() else file)
    _refuse_unsupported(spec)
    root = (session.invocation.cwd / file).parent / spec.workdir
    if not root.is_dir():
        from phalanx.errors import Problem, SpecInvalid

        said = "no such folder; it is relative to the file that names it"
        raise SpecInvalid([Problem("workdir", said, spec.workdir)])
    if dry_run:
        _print_resolved(session, spec)
        return
    session.begin()
    request = {"kind": "submit", "owner": session.invocation.owner()}
    _submit(session, spec, root, request, after(not follow, all_ranks))


def _refuse_unsupported(spec: JobSpec) -> None:
    from phalanx.errors import SpecInvalid
    from phalanx.schemas.spec.document import check_supported

    problems = check_supported(spec)
    if problems:
        raise SpecInvalid(problems)


def _print_resolved(session: Session, spec: JobSpec) -> None:
    """The server checks it as well: only it knows the pools."""
    from phalanx.schemas.api.jobs import SubmitRequest
    from phalanx.schemas.spec.document import resolved, to_yaml

    body = resolved(spec)
    with session.client() as client:
        client.submit(SubmitRequest(spec=body, owner=session.invocation.owner()), dry_run=True)
    print(to_yaml(body), end="")


def _submit(
    session: Session, spec: JobSpec, root: Path | None, request: dict[str, Any], then: str
) -> None:
    from phalanx.schemas.api.jobs import SubmitRequest
    from phalanx.schemas.spec.document import resolved

    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        code, archive = None, Path(folder) / "code.tar"
        if root is not None:
            from phalanx.cli.client.snapshot import take

            snapshot = take(root, archive, excluded=[session.home])
            for said in snapshot.notes:
                note(f"snapshot: {said}")
            code = snapshot.digest
            spec = _with_commit(spec, root)
        with session.client() as client:
            if code is not None and not client.has_code(code):
                client.put_code(code, _chunks(archive))
            body = SubmitRequest(spec=resolved(spec), code=code, **request)
            job = client.submit(body).job
            assert job is not None
            archive.unlink(missing_ok=True)
            _stay(session, client, job, then)


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _stay(session: Session, client: PhalanxClient, job: JobView, then: str) -> None:
    if then == "leave":
        print(job.label)
        return
    from phalanx.cli.terminal.follow import CtrlC, Follower, OutputFilter

    view = OutputFilter(ranks="all" if then == "all" else "first")
    code = Follower(session, client, job.num, view, CtrlC.CANCEL).run()
    raise typer.Exit(code)


def _with_commit(spec: JobSpec, root: Path) -> JobSpec:
    """The Git commit of the work directory as a label, where there is one, for later."""
    if "git-commit" in spec.labels or not any(
        (folder / ".git").exists() for folder in (root.absolute(), *root.absolute().parents)
    ):
        return spec
    found = _git(root, "rev-parse", "--short=12", "HEAD")
    if not found:
        return spec
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    commit = found + ("-dirty" if changed else "")
    return spec.model_copy(update={"labels": {**spec.labels, "git-commit": commit}})


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
