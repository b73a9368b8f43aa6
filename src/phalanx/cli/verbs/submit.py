"""Verbs that submit jobs, and those on the spec file: run, submit, spec schema, spec check."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.session import Session
from phalanx.cli.client.source_state import (
    absolute_reference,
    commit_of,
    difference_once,
    source_request,
)
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import (
    AllRanks,
    Detach,
    DryRun,
    GroupOption,
    NameOption,
    NodesOption,
    Package,
    ProjectOption,
    RanksOption,
    Requirements,
    TagOption,
)
from phalanx.cli.terminal.output import note

if TYPE_CHECKING:
    from phalanx.cli.client.invocation import ForwardedEnvironment
    from phalanx.cli.client.run_spec import RunFlags, RunPlan
    from phalanx.schemas.api.jobs import JobView
    from phalanx.schemas.foreign.rules import Conversion
    from phalanx.schemas.spec.job import JobSpec
    from phalanx.schemas.spec.lines import SpecSource
    from phalanx.sdk import PhalanxClient

_CHUNK = 2**20
SHOW = "show"


@dataclass(frozen=True, slots=True)
class FileFlags:
    """Flags of a submission of files; None or empty: not given."""

    ranks: int | None = None
    on_final_failure: str | None = None
    resume_from: str | None = None
    depends_on: Sequence[str] = ()
    values: Sequence[str] = ()
    local: bool = False
    explain: bool = False


Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT | COMMAND [-- ARG...]",
        help="The script or command that every rank runs.",
    ),
]
Module = Annotated[
    str | None, typer.Option("-m", "--module", help="Run a Python module instead of a script.")
]
Pool = Annotated[
    list[str] | None,
    typer.Option("--pool", help="A pool that the job may run in; may be repeated."),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="Set or forward a variable; may be repeated.",
    ),
]
Every = Annotated[
    str | None,
    typer.Option("--checkpoint-every", help="Checkpoint interval: 10m, `500 steps` or `1 epoch`."),
]
Framework = Annotated[
    str | None,
    typer.Option("--framework", help="torch, jax, tensorflow, horovod, mpi, ray or none."),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics",
        metavar="PATTERN",
        help="How to read metrics from output: `step {step}: loss {loss}`, or json.",
    ),
]
Directory = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-directory",
        help="Folder of the script's own checkpoints, for Phalanx to store.",
    ),
]
Continue = Annotated[
    bool,
    typer.Option(
        "--continue",
        help="Begin with what the checkpoint directory already holds, such as a past job's files, or with"
        " checkpoints of another job that had the same number.",
    ),
]
OnFinalFailure = Annotated[
    str | None,
    typer.Option(
        "--on-final-failure",
        metavar="succeed|fail",
        help="How the job ends when its last checkpoint cannot be saved; the default is succeed.",
    ),
]
ResumeFrom = Annotated[
    str | None,
    typer.Option(
        "--resume-from",
        metavar="JOB[@WHICH]|PATH|URL|latest",
        help="A checkpoint to begin from: j-12, j-12@1200, j-12@best, a path, a URL, or latest of the"
        " newest job of the same name.",
    ),
]
ScaleLr = Annotated[
    str | None,
    typer.Option(
        "--scale-lr",
        metavar="none|linear|sqrt",
        help="Multiply the learning rate by the ranks of the first start, in scripts with phalanx.train.",
    ),
]
MaxDuration = Annotated[
    str | None, typer.Option("--max-duration", help="The job fails after this duration.")
]
Priority = Annotated[
    str | None,
    typer.Option("--priority", help="0 to 100, higher first; or low, normal, high, urgent."),
]
DependsOn = Annotated[
    list[str] | None,
    typer.Option(
        "--depends-on",
        metavar="[KIND:]JOB",
        help="A job to wait for, such as j-12; KIND is after, afterany, afterok (the default) or"
        " afternotok. May be repeated.",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--template", metavar="NAME[@VERSION]", help="Submit the job of a template instead."
    ),
]
TemplateValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A parameter of the template, or a placeholder of another tool's file; may be repeated.",
    ),
]
Local = Annotated[
    bool,
    typer.Option(
        "--local",
        help="Run the command of another tool's file here, without its image, volumes and nodes.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Print what becomes of each key of another tool's file, and submit nothing.",
    ),
]
NoWarm = Annotated[bool, typer.Option("--no-warm", help="Start ranks without the warm process.")]
WarmImport = Annotated[
    list[str] | None,
    typer.Option("--warm-import", help="A module to import before ranks start; may be repeated."),
]


def run(  # noqa: PLR0913 (one parameter for each flag)
    ctx: typer.Context,
    command: Command = None,
    ranks: RanksOption = None,
    nodes: NodesOption = None,
    module: Module = None,
    name: NameOption = None,
    project: ProjectOption = None,
    tag: TagOption = None,
    group: GroupOption = None,
    pool: Pool = None,
    env: Env = None,
    every: Every = None,
    framework: Framework = None,
    metrics: Metrics = None,
    directory: Directory = None,
    continues: Continue = False,
    on_final_failure: OnFinalFailure = None,
    resume_from: ResumeFrom = None,
    scale_lr: ScaleLr = None,
    max_duration: MaxDuration = None,
    priority: Priority = None,
    no_warm: NoWarm = False,
    warm_import: WarmImport = None,
    requirements: Requirements = None,
    package: Package = None,
    values: TemplateValues = None,
    local: Local = False,
    explain: Explain = False,
    detach: Detach = False,
    all_ranks: AllRanks = False,
    dry_run: DryRun = False,
) -> None:
    """Run a script or command as a job of N ranks, and follow it.

    The job gets your environment and a copy of your folder; secret variables are not stored with it.
    A job file (.yaml, .yml, .sbatch, .slurm, or .sh with #SBATCH) is submitted as by `submit`, and
    followed; words after it are the program of a file that names none.
    Ctrl-C cancels the job and waits until its ranks have saved; a second Ctrl-C detaches.
    """
    from phalanx.cli.client.run_spec import RunFlags

    flags = RunFlags(
        module=module,
        ranks_per_node=ranks,
        nodes=nodes,
        **_named(name, project, tag, group),
        checkpoint_every=every,
        checkpoint_directory=directory,
        continues=continues,
        on_final_failure=on_final_failure,
        resume_from=absolute_reference(resume_from, ctx.obj.invocation.cwd),
        scale_lr=scale_lr,
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
    wanted = FileFlags(ranks=ranks, values=values or (), local=local, explain=explain)
    then = SHOW if dry_run else after(detach, all_ranks)
    _run_or_submit(ctx.obj, command or [], flags, env or [], wanted, then)


def _named(
    name: str | None, project: str | None, tags: Sequence[str] | None, group: str | None
) -> dict[str, Any]:
    """The flags that say what a run is called and where it belongs."""
    return {"name": name, "project": project, "tags": tags or (), "group": group}


def _run_or_submit(
    session: Session,
    words: Sequence[str],
    flags: RunFlags,
    env: Sequence[str],
    wanted: FileFlags,
    then: str,
) -> None:
    """Submit the job file that is the first word, or run the words.

    Words after a file are the program that it starts, for files that name none.
    """
    from phalanx.cli.client.foreign_specs import is_job_file
    from phalanx.cli.client.run_spec import RunFlags
    from phalanx.errors import UserError

    if not words or not is_job_file(session.invocation.cwd / words[0]):
        _refuse_file_flags(wanted.values, wanted.local, wanted.explain)
        _run(session, words, flags, env, then)
        return
    if env or flags != RunFlags(ranks_per_node=wanted.ranks):
        raise UserError(
            f"{words[0]} is a job file: flags that set keys of a spec do not apply",
            "write them in the file; -n, --set, --local, --explain, --detach and --dry-run apply",
        )
    if words[1:]:
        wanted = replace(wanted, values=[*wanted.values, f"PROGRAM={shlex.join(words[1:])}"])
    _submit_files(session, [Path(words[0])], wanted, then)


def _run(
    session: Session, words: Sequence[str], flags: RunFlags, env: Sequence[str], then: str
) -> None:
    """Plan a run with the variables of `--env`, and submit it."""
    from phalanx.cli.client.invocation import forward_environment, protects_secrets
    from phalanx.cli.client.run_spec import plan_run, split_env

    values, names = split_env(env)
    forwarded = forward_environment(
        session.invocation.env, names, protected=protects_secrets(session.url)
    )
    planned = plan_run(words, replace(flags, env=values), session.invocation)
    submit_planned(session, planned, then, forwarded)


def submit_planned(
    session: Session, planned: RunPlan, then: str, forwarded: ForwardedEnvironment | None = None
) -> None:
    """Submit a planned run with the user's environment, then follow it as `then` says.

    With `SHOW` the spec is only checked and printed.
    """
    from phalanx.cli.client.invocation import forward_environment, protects_secrets

    forwarded = forwarded or forward_environment(
        session.invocation.env, [], protected=protects_secrets(session.url)
    )
    _refuse_unsupported(planned.spec)
    if then == SHOW:
        _print_resolved(session, planned.spec)
        return
    # The control plane starts while the code is packed.
    session.begin()
    note_forwarded(session, forwarded)
    request = {
        "kind": "run",
        "caller_cwd": str(session.invocation.cwd),
        "caller_env": forwarded.env,
        "owner": session.invocation.owner(),
    }
    _submit(session, planned.spec, planned.root, request, then)


def note_forwarded(session: Session, forwarded: ForwardedEnvironment) -> None:
    """Say which of the user's variables are secrets, and which are not sent."""
    if forwarded.secrets:
        note(f"forwarded as secrets, which are shown and stored nowhere: {_few(forwarded.secrets)}")
    if forwarded.withheld:
        note(
            f"not forwarded, since they are secrets and {session.url} is not encrypted: "
            f"{', '.join(forwarded.withheld)}"
        )
    if forwarded.not_utf8:
        note(f"not forwarded, since they are not UTF-8: {', '.join(forwarded.not_utf8)}")


def _few(names: Sequence[str], limit: int = 6) -> str:
    """The first names of a list, and the number of the rest."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def after(detach: bool, all_ranks: bool) -> str:
    """What to do after submission: return, or follow the output of rank 0 or of all ranks."""
    if detach:
        return "leave"
    return "all" if all_ranks else "first"


def submit(  # noqa: PLR0913 (one parameter for each flag)
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...",
            help="Job specs in YAML, with one or several documents, or job files of other tools.",
        ),
    ] = None,
    template: Template = None,
    values: TemplateValues = None,
    project: ProjectOption = None,
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", min=1, help="Ranks in all, instead of the file's shape."),
    ] = None,
    on_final_failure: OnFinalFailure = None,
    resume_from: ResumeFrom = None,
    depends_on: DependsOn = None,
    local: Local = False,
    explain: Explain = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the job, as `run` does.")
    ] = False,
    all_ranks: AllRanks = False,
    dry_run: DryRun = False,
) -> None:
    """Submit jobs from spec files, all or none; paths in them are relative to the file.

    A file of another tool, such as a PyTorchJob, is converted; each of its keys is mapped, dropped with a
    warning or refused. The flags hold for every job. A job may depend on another one of the same call by
    its name.
    """
    session: Session = ctx.obj
    from phalanx.errors import UserError

    if template is not None:
        _refuse_file_flags((), local, explain, "a template")
        if files or ranks or on_final_failure or depends_on or resume_from:
            raise UserError("--template takes neither files nor flags of the spec", "write --set")
        then = after(not follow, all_ranks)
        _submit_template(session, template, values or (), project or "default", then, dry_run)
        return
    if not files or project is not None:
        raise UserError("name a spec file", "--project is for --template NAME")
    wanted = FileFlags(
        ranks=ranks,
        on_final_failure=on_final_failure,
        resume_from=absolute_reference(resume_from, session.invocation.cwd),
        depends_on=depends_on or (),
        values=values or (),
        local=local,
        explain=explain,
    )
    then = SHOW if dry_run else after(not follow, all_ranks)
    _submit_files(session, files, wanted, then)


def _submit_files(session: Session, files: Sequence[Path], wanted: FileFlags, then: str) -> None:
    """Submit the jobs of spec files and of other tools' files, and follow the one as `then` says."""
    from phalanx.cli.client.foreign_specs import lines_of
    from phalanx.errors import UserError
    from phalanx.schemas.spec.lines import located

    paths = [session.invocation.cwd / file for file in files]
    foreign = {path: _foreign_of(session, path, wanted) for path in paths}
    if any(one is not None and one.is_study for one in foreign.values()):
        _submit_search(session, foreign, wanted, then)
        return
    entries = [(path, *one) for path in paths for one in _specs_of(foreign[path], path, wanted)]
    sources = [source for _, _, source in entries]
    found: list[tuple[JobSpec, Path]] = []
    for path, spec, source in entries:
        with located([source] if len(entries) > 1 else []):
            found.append(_with_flags(path, spec, wanted))
    if wanted.explain:
        return
    if len(found) > 1 or found[0][0].array is not None:
        if then not in ("leave", SHOW):
            raise UserError(
                "--follow is for one job", "use `phalanx wait` or `phalanx logs -f JOB`"
            )
        with located(sources):
            _submit_batch(session, found, then == SHOW)
        return
    with lines_of(foreign[paths[0]], paths[0], wanted.local):
        if then == SHOW:
            _print_resolved(session, found[0][0])
            return
        session.begin()
        request = {"kind": "submit", "owner": session.invocation.owner()}
        _submit(session, *found[0], request, then)


def _with_flags(path: Path, spec: JobSpec, wanted: FileFlags) -> tuple[JobSpec, Path]:
    """A spec with the flags of the command, and its work directory. Raises SpecInvalid."""
    if wanted.ranks is not None:
        spec = _with_ranks(spec, wanted.ranks)
    for key in ("on_final_failure", "resume_from"):
        if (value := getattr(wanted, key)) is not None:
            spec = _with_checkpoint(spec, key, value)
    if wanted.depends_on:
        spec = _with_dependencies(spec, wanted.depends_on)
    _refuse_unsupported(spec)
    return spec, _root(path, spec)


def _foreign_of(session: Session, path: Path, wanted: FileFlags) -> Conversion | None:
    """The conversion of the file of another tool; None for job specs. Raises SpecInvalid."""
    from phalanx.cli.client.foreign_specs import placeholders, read_foreign

    return read_foreign(path, placeholders(wanted.values), wanted.local, session.invocation)


def _submit_search(
    session: Session, foreign: Mapping[Path, Conversion | None], wanted: FileFlags, then: str
) -> None:
    """Submit the only file, which is a search, as a study. Raises UserError."""
    from phalanx.cli.client.foreign_specs import explain, lines_of, study_of
    from phalanx.cli.verbs.studies.sweep import start_study
    from phalanx.errors import UserError

    (path, found), *others = foreign.items()
    if others or found is None:
        raise UserError("a search is submitted alone", "submit its file in a command of its own")
    if wanted.ranks is not None or wanted.on_final_failure is not None or wanted.depends_on:
        raise UserError(
            f"{path.name} is a search: -n, --depends-on and --on-final-failure do not apply",
            "--set, --local, --explain and --dry-run apply",
        )
    if wanted.explain:
        explain(found, path)
    study = study_of(found, path)
    if not wanted.explain:
        with lines_of(found, path, wanted.local):
            start_study(session, path, study, then == SHOW, detach=then == "leave")


def _specs_of(
    foreign: Conversion | None, path: Path, wanted: FileFlags
) -> list[tuple[JobSpec, SpecSource]]:
    """The specs of a file, or of the file of another tool. Raises SpecInvalid."""
    from phalanx.cli.client.foreign_specs import explain, specs_of
    from phalanx.schemas.spec.lines import load_specs

    if foreign is None:
        _refuse_file_flags(wanted.values, wanted.local, wanted.explain, path.name)
        return load_specs(path)
    if wanted.explain:
        explain(foreign, path)
    return specs_of(foreign, path, wanted.local)


def _refuse_file_flags(
    values: Sequence[str], local: bool, explained: bool, name: str = "this command"
) -> None:
    """Refuse the flags for files of other tools where there is none."""
    given = [("--set", values), ("--local", local), ("--explain", explained)]
    flags = [flag for flag, one in given if one]
    if flags:
        from phalanx.errors import UserError

        raise UserError(
            f"{', '.join(flags)}: {name} is not a file of another tool",
            "--set is for placeholders in such files, and for --template NAME",
        )


def _submit_template(
    session: Session, name: str, values: Sequence[str], project: str, then: str, dry_run: bool
) -> None:
    """Submit the job of a template, `NAME` or `NAME@VERSION`, and follow it as `then` says."""
    from phalanx.errors import UserError
    from phalanx.schemas.api.templates import SubmitTemplateRequest
    from phalanx.schemas.spec.document import to_yaml

    plain, _, version = name.partition("@")
    if version and not version.isdecimal():
        raise UserError(f"--template {name}: {version!r} is not a version", "write NAME@3")
    with session.client() as client:
        request = SubmitTemplateRequest(
            set=dict(_parameter(one) for one in values),
            version=int(version) if version else None,
            dry_run=dry_run,
            owner=session.invocation.owner(),
        )
        made = client.templates.submit(plain, request, project)
        if dry_run:
            print(to_yaml(made.spec), end="")
        elif len(made.jobs) == 1 and made.jobs[0].array is None:
            stay(session, client, client.job(made.jobs[0].num), then)
        else:
            print(f"a-{made.jobs[0].array}")


def _parameter(text: str) -> tuple[str, Any]:
    import yaml

    from phalanx.errors import UserError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UserError(
            f"--set: {text!r} is not a value of a parameter", "write NAME=VALUE: lr=0.1"
        )
    try:
        found = yaml.safe_load(value)
    except yaml.YAMLError:
        return name, value
    return name, found if isinstance(found, str | int | float | bool) else value


def _root(file: Path, spec: JobSpec) -> Path:
    """The work directory of a spec file. Raises SpecInvalid."""
    root = file.parent / spec.workdir
    if not root.is_dir():
        from phalanx.errors import Problem, SpecInvalid

        said = "no such folder; the path is relative to the spec file"
        raise SpecInvalid([Problem("workdir", said, spec.workdir)])
    return root


def _submit_batch(session: Session, found: Sequence[tuple[JobSpec, Path]], dry_run: bool) -> None:
    """Submit several jobs and arrays in one request, and print a line for each."""
    from phalanx.schemas.api.jobs import SubmitRequest
    from phalanx.schemas.spec.document import resolved

    owner = session.invocation.owner()
    if dry_run:
        with session.client() as client:
            requests = [SubmitRequest(spec=resolved(spec), owner=owner) for spec, _ in found]
            client.submit_batch(requests, dry_run=True)
        print(f"{len(found)} specs are valid")
        return
    session.begin()
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder, session.client() as client:
        digests: dict[Path, str] = {}
        sources = {root.resolve(): source_request(root) for _, root in found}
        for _, root in found:
            if root.resolve() not in digests:
                digests[root.resolve()] = _upload(session, client, root, Path(folder) / "code.tar")
        requests = [
            SubmitRequest(
                spec=resolved(_with_commit(spec, root)),
                code=digests[root.resolve()],
                owner=owner,
                source=sources[root.resolve()],
            )
            for spec, root in found
        ]
        requests = difference_once(requests)
        jobs = client.submit_batch(requests).jobs
    for one in jobs:
        if one.array is None:
            print(one.label)
        elif one.array == one.num:
            print(f"a-{one.array}")


def spec_and_code(
    session: Session, client: PhalanxClient, path: Path, folder: Path
) -> tuple[JobSpec, str]:
    """The one spec of a file, and the digest of the uploaded copy of its work directory."""
    from phalanx.errors import UserError
    from phalanx.schemas.spec.lines import load_specs

    specs = [spec for spec, _ in load_specs(path)]
    if len(specs) != 1:
        raise UserError(f"{path.name} has {len(specs)} specs", "write one spec in the file")
    root = _root(path, specs[0])
    return _with_commit(specs[0], root), _upload(session, client, root, folder / "code.tar")


def upload_folder(session: Session, client: PhalanxClient, root: Path, folder: Path) -> str:
    """Upload a copy of a work directory, packed in `folder`. Raises UserError without that directory."""
    from phalanx.errors import UserError

    if not root.is_dir():
        raise UserError(f"{root}: no such folder", "`workdir` is relative to the file")
    return _upload(session, client, root, folder / "code.tar")


def _upload(session: Session, client: PhalanxClient, root: Path, archive: Path) -> str:
    """Upload a copy of a folder unless the server has it, and return its digest."""
    from phalanx.cli.client.snapshot import take

    snapshot = take(root, archive, excluded=[session.home])
    for said in snapshot.notes:
        note(f"snapshot: {said}")
    if not client.has_code(snapshot.digest):
        client.put_code(snapshot.digest, _chunks(archive))
    archive.unlink(missing_ok=True)
    return snapshot.digest


def _with_ranks(spec: JobSpec, ranks: int) -> JobSpec:
    """The spec with another number of ranks; their shape is chosen with the placement."""
    from phalanx.schemas.spec.document import resolved, validate_spec

    body = resolved(spec)
    slots = ranks * spec.resources.slots_per_rank
    body["resources"] = {
        **{k: v for k, v in body["resources"].items() if k not in ("nodes", "slots_per_node")},
        "accelerators": slots,
    }
    return validate_spec(body)


def _with_checkpoint(spec: JobSpec, key: str, wanted: str) -> JobSpec:
    """The spec with another value in its section `checkpoint`. Raises SpecInvalid."""
    from phalanx.schemas.spec.document import resolved, validate_spec

    body = resolved(spec)
    return validate_spec({**body, "checkpoint": {**body["checkpoint"], key: wanted}})


def _with_dependencies(spec: JobSpec, wanted: Sequence[str]) -> JobSpec:
    """The spec with more dependencies, each `KIND:JOB` or `JOB`. Raises SpecInvalid."""
    from phalanx.schemas.spec.document import resolved, validate_spec

    body = resolved(spec)
    kinds = {kind: list(names) for kind, names in body["depends_on"].items()}
    for one in wanted:
        kind, colon, job = one.partition(":")
        kinds.setdefault(kind if colon else "afterok", []).append(job if colon else one)
    return validate_spec({**body, "depends_on": kinds})


def _refuse_unsupported(spec: JobSpec) -> None:
    from phalanx.errors import SpecInvalid
    from phalanx.schemas.spec.support import check_supported

    problems = check_supported(spec)
    if problems:
        raise SpecInvalid(problems)


def _print_resolved(session: Session, spec: JobSpec) -> None:
    """Print the spec after the server has checked it against its pools, and its restart budgets."""
    from phalanx.cli.terminal.restarts import restart_table
    from phalanx.core.contract.secrecy import shown_spec
    from phalanx.schemas.api.jobs import SubmitRequest
    from phalanx.schemas.spec.document import resolved, to_yaml

    body = resolved(spec)
    with session.client() as client:
        client.submit(SubmitRequest(spec=body, owner=session.invocation.owner()), dry_run=True)
    print(to_yaml(shown_spec(body)) + restart_table(spec.recovery.to_core()))


def _submit(
    session: Session, spec: JobSpec, root: Path | None, request: dict[str, Any], then: str
) -> None:
    from phalanx.schemas.api.jobs import SubmitRequest
    from phalanx.schemas.spec.document import resolved

    request = {**request, "source": source_request(root or session.invocation.cwd)}
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
            made = client.submit(body)
            job = made.job
            assert job is not None
            for said in made.estimate.warnings if made.estimate else ():
                note(f"warning: {said}")
            archive.unlink(missing_ok=True)
            stay(session, client, job, then)


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def stay(session: Session, client: PhalanxClient, job: JobView, then: str) -> None:
    """Follow a submitted job as `then` says, or print its number."""
    if then == "leave":
        print(job.label)
        return
    from phalanx.cli.client.follow import CtrlC, Follower, OutputFilter

    view = OutputFilter(ranks="all" if then == "all" else "first")
    code = Follower(session, client, job.num, view, CtrlC.CANCEL).run()
    raise typer.Exit(code)


def _with_commit(spec: JobSpec, root: Path) -> JobSpec:
    """The spec with the Git commit of the work directory as a label, if there is one."""
    commit = "" if "git-commit" in spec.labels else commit_of(root)
    if not commit:
        return spec
    return spec.model_copy(update={"labels": {**spec.labels, "git-commit": commit}})


# -- the spec file --------------------------------------------------------------------------------

spec_app = typer.Typer(
    name="spec", no_args_is_help=True, help="The job spec: its JSON schema, and a check."
)


@spec_app.command()
def schema() -> None:
    """Print the JSON schema of the job spec."""
    from phalanx.schemas.spec.document import json_schema

    output.as_json(json_schema())


@spec_app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job spec in YAML.")],
) -> None:
    """Check a spec without a control plane, and print it with every default."""
    from phalanx.core.contract.secrecy import shown_spec
    from phalanx.schemas.spec.document import load_spec, resolved, to_yaml

    spec = load_spec(file)
    _refuse_unsupported(spec)
    print(to_yaml(shown_spec(resolved(spec))), end="")
