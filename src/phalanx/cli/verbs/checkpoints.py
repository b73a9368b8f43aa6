"""The verb checkpoints: of a job, in a folder, or in an object store.

Most actions need no control plane.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.checkpoint_locations import VALID, CheckpointLocation, copies_of, locate
from phalanx.cli.client.session import Session, job_number
from phalanx.cli.exits import NOT_FINISHED
from phalanx.cli.terminal import options, output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.terminal.provenance import show_provenance
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound, PlatformError, UserError
from phalanx.kit.text import job_label, parse_job_label
from phalanx.kit.units import format_size

if TYPE_CHECKING:
    from phalanx.checkpoint.encryption import Encryption
    from phalanx.core.training.checkpoints import Manifest
    from phalanx.schemas.api.jobs import CheckpointView
    from phalanx.schemas.api.provenance import ProvenanceView
    from phalanx.schemas.api.telemetry import RequestTicket, SaveView
    from phalanx.sdk import PhalanxClient

_ACTIONS = ("save", "list", "show", "verify", "rm", "scrub", "export", "pin", "unpin")
_ON_JOBS = ("save", "pin", "unpin")
_POLL_S = 20.0
OfWeights = Annotated[
    bool,
    typer.Option("--provenance", help="show: the job, code, data and parameters of the weights."),
]


def checkpoints(  # noqa: PLR0913 (one parameter for each flag)
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | save JOB... | pin JOB CHECKPOINT"
            " | unpin JOB CHECKPOINT | list WHERE | show WHERE | verify WHERE... | rm WHERE..."
            " | scrub WHERE... | export WHERE OUT",
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
    wait: Annotated[
        str, typer.Option("--wait", help="save: maximum wait for the checkpoint; 0s: do not wait.")
    ] = "10m",
    provenance: OfWeights = False,
    json: AsJson = False,
) -> None:
    """List the checkpoints of a job; or save, pin, list, show, verify, remove, scrub and export them.

    `pin` keeps a checkpoint (latest, best, a step or its name) until it is unpinned.
    `save` has a running job save at the end of its step, and waits until the checkpoint is committed.
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
    if action in _ON_JOBS:
        wait_s = options.duration("--wait", wait) or 0.0
        _on_jobs(ctx.obj, action, rest, wait_s, json)
        return
    if action == "export" and len(rest) != 2:
        said = "checkpoints export needs a checkpoint and an output file"
        raise UserError(said, "write export WHERE OUT")
    seal = _seal(ctx.obj, key_env, key_file)
    locations = [locate(word, ctx.obj) for word in (rest[:1] if action == "export" else rest)]
    if action == "list":
        _list(locations[0], show)
    elif action == "show":
        _show(locations[0], show) if not provenance else _show_provenance(
            ctx.obj, locations[0], json
        )
    elif action == "verify":
        _verify(locations, seal, show)
    elif action == "scrub":
        _scrub(locations, show)
    elif action == "export":
        _export(locations[0], rest[1], key_env, key_file)
    else:
        _remove(locations, force)


def _remove(locations: list[CheckpointLocation], force: bool) -> None:
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
        "PINNED": lambda one: "pinned" if one.is_pinned else None,
        "AGE": lambda one: output.ago(one.created_at),
        "PATH": lambda one: one.path,
    }
    output.listing(found, json, columns, "no checkpoints yet")
    if json:
        return
    if copies := copies_of(view):
        output.note(f"copies: phalanx checkpoints list {copies}")


def _on_jobs(session: Session, action: str, words: list[str], wait_s: float, json: bool) -> None:
    """The actions that a control plane does."""
    if action == "save":
        _save_now(session, [job_number(word) for word in words], wait_s, json)
    else:
        _pin(session, action, words)


def _pin(session: Session, action: str, words: list[str]) -> None:
    """Pin or unpin one checkpoint of a job."""
    if len(words) != 2:
        said = f"checkpoints {action} needs a job and a checkpoint"
        raise UserError(said, f"write {action} JOB latest, or best, a step or a name")
    num = job_number(words[0])
    with session.client() as client:
        change = (
            client.retention.pin_checkpoint
            if action == "pin"
            else client.retention.unpin_checkpoint
        )
        print(f"{change(num, words[1]).path} {action}ned")


def _save_now(session: Session, jobs: list[int], wait_s: float, json: bool) -> None:
    """Request a checkpoint of each job, then wait for all of them."""
    with session.client() as client:
        asked = {num: client.ask_save(num) for num in jobs}
        if wait_s <= 0:
            for num in jobs:
                print(f"requested: phalanx checkpoints {job_label(num)}")
            return
        found = {num: _saved(client, num, asked[num], wait_s) for num in jobs}
    if json:
        output.as_json([{"job": num, **one.model_dump(mode="json")} for num, one in found.items()])
        return
    for one in found.values():
        size = format_size(one.size_bytes) if one.size_bytes is not None else "unknown size"
        took = f" in {one.took_s:.2f} s" if one.took_s is not None else ""
        print(f"step {one.saved_step}  {size}{took}  {one.path}")


def _saved(client: PhalanxClient, num: int, asked: RequestTicket, wait_s: float) -> SaveView:
    """Wait for the checkpoint of a request. Raises what became of it instead."""
    label, seen = job_label(num), False
    for _ in range(max(1, math.ceil(wait_s / _POLL_S))):
        view = client.saves(num, asked=asked, wait_s=min(_POLL_S, wait_s))
        found = view.answer_to(*asked.answers)
        if found is not None and found.path is not None:
            return found
        if found is not None:
            raise CheckpointNotFound(
                f"{label} could not save at step {found.step}", f"phalanx show {label} says why"
            )
        if (view.attempt, view.generation) != asked.answers[:2]:
            raise CheckpointNotFound(
                f"the ranks of {label} ended or restarted before they saved",
                f"what it has: phalanx checkpoints {label}",
            )
        begun = [one for one in view.saves if one.answers >= asked.answers]
        if begun and not seen:
            seen = True
            output.note(f"{label} saves its step {begun[-1].step}")
        elif not begun:
            output.note(f"{label} has not reached the end of its step")
    output.note(
        f"{label} has committed no checkpoint within {wait_s:.0f} s: increase --wait;"
        " only scripts with the loader of phalanx.train save when they are asked"
    )
    raise typer.Exit(NOT_FINISHED)


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


def _show_provenance(session: Session, location: CheckpointLocation, json: bool) -> None:
    """Print what a checkpoint is of: from its manifest, and from the control plane that knows its job."""
    manifest = location.manifest()
    found = {
        "checkpoint": manifest.name,
        "step": manifest.step,
        "job": manifest.job,
        "job_uid": manifest.job_uid,
        "attempt": manifest.attempt,
        "generation": manifest.generation,
        "digest": manifest.provenance or None,
        "parent": manifest.parent,
        "first": manifest.root or None,
        "script": manifest.code.get("script"),
        "versions": dict(manifest.versions),
        "data": dict(manifest.data),
    }
    view, why = _provenance_of(session, manifest)
    if json:
        output.as_json({**found, "server": view and view.model_dump(mode="json")})
        return
    output.facts((key, _short(value)) for key, value in found.items())
    if view is None:
        output.note(why)
        return
    print(f"\n{view.label}, from the control plane:")
    show_provenance(view, "text")


def _provenance_of(session: Session, manifest: Manifest) -> tuple[ProvenanceView | None, str]:
    """What the control plane knows of the job that wrote a checkpoint, or why it knows nothing.

    None is started for it. A job of the same number in another database has another digest.
    """
    from phalanx.cli.client import embedded

    num = parse_job_label(manifest.job or "")
    if num is None or not manifest.provenance:
        return (
            None,
            "the checkpoint names no job of this release: the manifest is all that is known",
        )
    if session.url is None and embedded.find(session.home) is None:
        return None, "no control plane runs here: the manifest is all that is known"
    try:
        with session.client() as client:
            view = client.provenance(num)
    except PlatformError as error:
        return None, f"the control plane has no answer: {error.message}"
    if view.digest != manifest.provenance:
        said = "is another job, or was changed since, than the one that wrote the checkpoint"
        return None, f"{view.label} of this control plane {said}"
    return view, ""


def _short(value: Any) -> Any:
    if isinstance(value, dict) and not value:
        return None
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
