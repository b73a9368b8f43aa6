"""The verb checkpoints: of a job, in a folder, or in an object store.

Most actions need no control plane.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.checkpoint_locations import VALID, CheckpointLocation, copies_of, locate
from phalanx.cli.client.session import Session, job_number
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.errors import CheckpointCorrupt, UserError
from phalanx.kit.units import format_size

if TYPE_CHECKING:
    from phalanx.checkpoint.encryption import Encryption
    from phalanx.schemas.api.jobs import CheckpointView

_ACTIONS = ("list", "show", "verify", "rm", "scrub", "export")


def checkpoints(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | list WHERE | show WHERE | verify WHERE... | rm WHERE... | scrub WHERE..."
            " | export WHERE OUT",
            help="WHERE is a path, j-12, j-12/step-…, or a URL such as s3://bucket/prefix.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="rm: delete even the last valid checkpoint of a folder.")
    ] = False,
    key_env: Annotated[
        str | None, typer.Option("--key-env", help="Environment variable with the encryption key.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="File with the encryption key.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the checkpoints of a job; or list, show, verify, remove, scrub and export checkpoints anywhere.

    `verify` reads every byte, and with a key also decrypts. `scrub` quarantines checkpoints that do not
    match their digests. `export` writes the weights to OUT, model.safetensors or model.pt. When WHERE
    holds several checkpoints, `show` and `export` use the newest.
    """
    show = output.as_json if json else None
    action, rest = words[0], words[1:]
    if action not in _ACTIONS:
        if rest:
            raise UserError(
                f"unknown action {action!r}", f"one of {', '.join(_ACTIONS)}, or one JOB"
            )
        _of_job(ctx.obj, action, json)
        return
    if not rest:
        raise UserError(f"checkpoints {action}: no path was given", f"write {action} WHERE")
    if action == "export" and len(rest) != 2:
        said = "checkpoints export needs a checkpoint and an output file"
        raise UserError(said, "write export WHERE OUT")
    seal = _seal(ctx.obj, key_env, key_file)
    locations = [locate(word, ctx.obj) for word in (rest[:1] if action == "export" else rest)]
    if action == "list":
        _list(locations[0], show)
    elif action == "show":
        _show(locations[0], show)
    elif action == "verify":
        _verify(locations, seal, show)
    elif action == "scrub":
        _scrub(locations, show)
    elif action == "export":
        _export(locations[0], rest[1], key_env, key_file)
    else:
        for location in locations:
            location.remove(spare_last=not force)
            print(f"removed {location.where}")


def _seal(session: Session, key_env: str | None, key_file: Path | None) -> Encryption | None:
    from phalanx.checkpoint.encryption import AesGcmEncryption, keys_from

    if key_env is not None and key_file is not None:
        raise UserError("--key-env and --key-file were both given", "give one of them")
    try:
        keys = keys_from(session.invocation.env, key_env, key_file)
    except ValueError as error:
        raise UserError(f"the key: {error}") from None
    return AesGcmEncryption(keys) if keys else None


def _of_job(session: Session, job: str, json: bool) -> None:
    num = job_number(job)
    with session.client() as client:
        found = client.checkpoints(num)
        view = client.job(num)
    columns: dict[str, Callable[[Any], Any]] = {
        "STEP": lambda one: one.step,
        "EPOCH": lambda one: one.epoch,
        "GENERATION": lambda one: f"{one.attempt}.{one.generation}",
        "SIZE": lambda one: format_size(one.size_bytes),
        "TOOK": lambda one: f"{one.took_s:.2f}s" if one.took_s is not None else None,
        "STATE": lambda one: one.state,
        "COPY": _copy,
        "BEST": lambda one: "best" if one.is_best else None,
        "AGE": lambda one: output.ago(one.created_at),
        "PATH": lambda one: one.path,
    }
    output.listing(found, json, columns, "no checkpoints yet")
    if json:
        return
    if copies := copies_of(view):
        output.note(f"copies: phalanx checkpoints list {copies}")


def _copy(one: CheckpointView) -> str | None:
    """Where the checkpoint is besides its folder, with the bytes that were or are to be sent."""
    if one.copy_state is None:
        return None
    size = f" {format_size(one.copy_bytes)}" if one.copy_bytes else ""
    return f"{one.copy_state}{size}" if one.near else f"{one.copy_state}{size} (store only)"


def _list(location: CheckpointLocation, show: Any) -> None:
    found = location.contents()
    if show is not None:
        show(
            {
                "good": [manifest.to_json() for _, manifest in found.good],
                "bad": dict(found.bad),
                "debris": found.debris,
                "quarantined": found.quarantined,
            }
        )
        return
    lines: list[tuple[Any, ...]] = [(*_row(where, one), "valid") for where, one in found.good]
    lines += [("", "", "", "", where, f"bad: {why}") for where, why in found.bad.items()]
    lines += [("", "", "", "", where, "quarantined") for where in found.quarantined]
    lines += [("", "", "", "", where, "incomplete") for where in found.debris]
    output.table(
        ("STEP", "EPOCH", "GENERATION", "SIZE", "PATH", "STATE"),
        lines,
        f"{location.where}: no checkpoints here",
    )


def _row(where: str, manifest: Any) -> tuple[Any, ...]:
    size = sum(entry.size_bytes for entry in manifest.files)
    generation = f"{manifest.attempt}.{manifest.generation}"
    return (manifest.step, manifest.epoch, generation, format_size(size), where)


def _show(location: CheckpointLocation, show: Any) -> None:
    manifest = location.manifest()
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


def _verify(locations: list[CheckpointLocation], seal: Encryption | None, show: Any) -> None:
    """Verify every digest of every checkpoint in these locations."""
    found: dict[str, str] = {}
    for location in locations:
        found |= location.verdicts(seal)
    if show is not None:
        show(found)
    else:
        for where, verdict in found.items():
            print(f"{where}: {verdict}" if verdict == VALID else verdict)
    _judge(found, "cannot be used")


def _scrub(locations: list[CheckpointLocation], show: Any) -> None:
    """Verify all checkpoints; bad ones are quarantined, so that no job resumes from them."""
    found: dict[str, str] = {}
    for location in locations:
        verdicts = location.scrub()
        found |= verdicts
        if show is None:
            for where, verdict in verdicts.items():
                print(f"{where}: {'' if verdict == VALID else location.fate + ': '}{verdict}")
    if show is not None:
        show(found)
    _judge(
        found,
        " or ".join(sorted({f"were {location.fate.partition(',')[0]}" for location in locations})),
    )


def _judge(found: dict[str, str], what: str) -> None:
    bad = sum(verdict != VALID for verdict in found.values())
    if bad:
        raise CheckpointCorrupt(f"{bad} of {len(found)} checkpoints {what}")


def _export(
    location: CheckpointLocation, out: str, key_env: str | None, key_file: Path | None
) -> None:
    """Export in a child process, since it needs torch."""
    key = ["--key-env", key_env] if key_env is not None else []
    key += ["--key-file", str(key_file)] if key_file is not None else []
    with location.local_copy() as path:
        command = [sys.executable, "-m", "phalanx.train.state.export", str(path), out, *key]
        code = subprocess.run(command, check=False).returncode
    if code:
        raise typer.Exit(code)
