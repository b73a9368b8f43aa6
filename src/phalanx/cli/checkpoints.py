"""The verb checkpoints: those of a job, or those in a folder without any server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli import output
from phalanx.cli.options import AsJson
from phalanx.cli.session import Session, job_number
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound, PlatformError, UserError
from phalanx.kit.units import format_size

_ACTIONS = ("list", "show", "verify", "rm", "scrub", "export")


def checkpoints(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | list PATH | show PATH | verify PATH... | rm PATH... | scrub PATH..."
            " | export PATH OUT",
            help="A job of the platform; or what to do with a folder of checkpoints, offline.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="rm: even the last valid checkpoint of a folder.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List the checkpoints of a job; or list, show, verify, remove, scrub and export those of a folder.

    `scrub` sets aside what no longer matches its digests. `export` writes the weights to OUT, for example
    model.safetensors.
    """
    show = output.as_json if json else None
    action, paths = words[0], [Path(word) for word in words[1:]]
    if action not in _ACTIONS:
        if paths:
            raise UserError(
                f"unknown action {action!r}", f"one of {', '.join(_ACTIONS)}, or one JOB"
            )
        _of_job(ctx.obj, action, show)
        return
    if not paths:
        raise UserError(f"checkpoints {action}: no path was given")
    if action == "list":
        _list(paths[0], show)
    elif action == "show":
        _show(paths[0], show)
    elif action == "verify":
        _verify(paths, show)
    elif action == "scrub":
        _scrub(paths, show)
    elif action == "export":
        _export(words[1:])
    else:
        _remove(paths, "any" if force else "spare")


def _of_job(session: Session, job: str, show: Any) -> None:
    num = job_number(job)
    with session.client() as client:
        found = client.checkpoints(num)
    if show is not None:
        show(found)
        return
    output.table(
        ("STEP", "EPOCH", "GENERATION", "SIZE", "TOOK", "STATE", "BEST", "AGE", "PATH"),
        (
            (
                one.step,
                one.epoch,
                f"{one.attempt}.{one.generation}",
                format_size(one.size_bytes),
                f"{one.took_s:.2f}s" if one.took_s is not None else None,
                one.state,
                "best" if one.is_best else None,
                output.ago(one.created_at),
                one.path,
            )
            for one in found
        ),
        "no checkpoints yet",
    )


def _list(path: Path, show: Any) -> None:
    from phalanx.checkpoint import scan

    if not path.is_dir():
        raise CheckpointNotFound(f"{path}: no such folder")
    listing = scan(path)
    rows = [(_row(one.path, one.manifest), "sound") for one in listing.good]
    if show is not None:
        show(
            {
                "good": [one.manifest.to_json() for one in listing.good],
                "bad": {str(where): why for where, why in listing.bad.items()},
                "debris": [str(where) for where in listing.debris],
                "quarantined": [str(where) for where in listing.quarantined],
            }
        )
        return
    lines: list[tuple[Any, ...]] = [(*row, state) for row, state in rows]
    lines += [("", "", "", "", str(where), f"bad: {why}") for where, why in listing.bad.items()]
    lines += [("", "", "", "", str(where), "quarantined") for where in listing.quarantined]
    lines += [("", "", "", "", str(where), "never finished") for where in listing.debris]
    output.table(
        ("STEP", "EPOCH", "GENERATION", "SIZE", "PATH", "STATE"),
        lines,
        f"{path}: no checkpoints here",
    )


def _row(path: Path, manifest: Any) -> tuple[Any, ...]:
    size = sum(entry.size_bytes for entry in manifest.files)
    generation = f"{manifest.attempt}.{manifest.generation}"
    return (manifest.step, manifest.epoch, generation, format_size(size), str(path))


def _show(path: Path, show: Any) -> None:
    from phalanx.checkpoint import read_manifest

    manifest = read_manifest(path)
    if show is not None:
        show(manifest.to_json())
        return
    body = {key: value for key, value in manifest.to_json().items() if key != "files"}
    output.facts((key, _short(value)) for key, value in body.items())
    print("files")
    for entry in manifest.files:
        print(f"  {entry.path}  {format_size(entry.size_bytes)}  {entry.digest}")


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return value


def _verify(paths: list[Path], show: Any) -> None:
    """Every digest of every checkpoint; a folder of checkpoints stands for all in it."""
    from phalanx.checkpoint import scan, verify

    found: dict[str, str] = {}
    for path in paths:
        inside = sorted({*(one.path for one in scan(path).good), *scan(path).bad})
        for one in inside or [path]:
            try:
                verify(one)
                found[str(one)] = "valid"
            except CheckpointCorrupt as error:
                found[str(one)] = error.message
    if show is not None:
        show(found)
    else:
        for where, verdict in found.items():
            print(f"{where}: {verdict}" if verdict == "valid" else verdict)
    bad = sum(verdict != "valid" for verdict in found.values())
    if bad:
        raise CheckpointCorrupt(f"{bad} of {len(found)} checkpoints cannot be used")


def _scrub(paths: list[Path], show: Any) -> None:
    """Verify all in these folders; what is bad is set aside, so that nothing resumes from it."""
    from phalanx.checkpoint import scrub
    from phalanx.kit.ids import random_hex

    found: dict[str, str] = {}
    for path in paths:
        if not path.is_dir():
            raise CheckpointNotFound(f"{path}: no such folder")
        result = scrub(path, random_hex(8))
        found |= {str(one): "valid" for one in result.valid}
        found |= {str(result.set_aside[one]): why for one, why in result.bad.items()}
    if show is not None:
        show(found)
    else:
        for where, verdict in found.items():
            print(f"{where}: {verdict}" if verdict == "valid" else f"{where}: set aside: {verdict}")
    bad = sum(verdict != "valid" for verdict in found.values())
    if bad:
        raise CheckpointCorrupt(f"{bad} of {len(found)} checkpoints were set aside")


def _export(words: list[str]) -> None:
    """Needs torch, so it is a program of its own."""
    if len(words) != 2:
        raise UserError("checkpoints export takes a checkpoint and where to write it")
    command = [sys.executable, "-m", "phalanx.train.export", *words]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise typer.Exit(code)


def _remove(paths: list[Path], which: str) -> None:
    from phalanx.checkpoint import list_checkpoints, read_manifest, remove

    for path in paths:
        try:
            read_manifest(path)
        except CheckpointCorrupt:
            pass  # nobody can use it: it may go
        else:
            others = [one for one in list_checkpoints(path.parent) if one.path.name != path.name]
            if which == "spare" and not others:
                raise UserError(
                    f"{path} is the last valid checkpoint in its folder",
                    "add --force when it is not needed",
                )
        try:
            remove(path)
        except OSError as error:
            raise PlatformError(f"{path}: cannot be removed: {error.strerror}") from error
        print(f"removed {path}")
