"""`phalanx bundle`: what is known of a job in one archive, without secrets, to give to others."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.session import connected, job_number
from phalanx.cli.terminal import output
from phalanx.cli.terminal.faults import HEADINGS, fault_row
from phalanx.cli.terminal.options import AsJson, JobName
from phalanx.core.contract.secrecy import WITHHELD, is_secret, redacted
from phalanx.errors import PlatformError, UserError
from phalanx.kit.clock import SystemClock
from phalanx.kit.text import job_label
from phalanx.kit.units import format_size

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import JobView
    from phalanx.schemas.api.telemetry import LogLine
    from phalanx.sdk import PhalanxClient

_LINES = 5000
_MOST_LINES = 100_000


@dataclass(slots=True)
class JobBundle:
    """The texts of a bundle by file name, and why parts of it could not be had."""

    files: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], str]) -> None:
        """Add a file; a part that the server refuses or does not have is noted instead."""
        try:
            self.files[name] = redacted(make())
        except PlatformError as error:
            self.missing[name] = redacted(error.message)

    @property
    def num_withheld(self) -> int:
        """How many values are withheld in all files."""
        return sum(text.count(WITHHELD) for text in self.files.values())


def bundle(
    ctx: typer.Context,
    job: JobName,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The archive; JOB-bundle.tar.gz by default."),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", min=0, max=_MOST_LINES, help="Newest lines of output.")
    ] = _LINES,
    as_json: AsJson = False,
) -> None:
    """Write all that is known of a job into one archive, without secrets: for a post-mortem or a report."""
    num = job_number(job)
    path = out or Path(f"{job_label(num)}-bundle.tar.gz")
    if path.exists():
        raise UserError(f"{path} exists", "remove it, or name another file with --output")
    with connected(ctx) as client:
        made = collect(client, num, lines)
    write(made, path, job_label(num))
    told = {
        "file": str(path),
        "size_bytes": path.stat().st_size,
        "files": sorted(made.files),
        "missing": made.missing,
        "num_withheld": made.num_withheld,
    }
    if as_json:
        output.as_json(told)
        return
    print(f"{path}: {len(made.files)} files, {format_size(path.stat().st_size)}")
    print(f"secrets: {made.num_withheld} values withheld; read the archive before you give it away")
    for name, why in made.missing.items():
        print(f"not in it: {name}: {why}")


def collect(client: PhalanxClient, num: int, lines: int) -> JobBundle:
    """Ask for all parts. Raises NotFound, PermissionDenied for the job itself."""
    view, made = client.job(num), JobBundle()
    made.add("job.json", lambda: _document(view))
    made.add("why.json", lambda: _document(client.why(num)))
    made.add("provenance.json", lambda: _document(client.provenance(num)))
    made.add("events.jsonl", lambda: _rows(client.history(num)))
    made.add("checkpoints.jsonl", lambda: _rows(client.checkpoints(num)))
    made.add("stacks.json", lambda: _document(client.stacks(num)))
    made.add("metrics.json", lambda: _document(client.metrics(num)))
    made.add("server.json", lambda: _document(client.info()))
    made.add("output.txt", lambda: _output(client, num, lines))
    # Last: it lists the others.
    made.add("README.md", lambda: _summary(view, made))
    return made


def write(made: JobBundle, path: Path, folder: str) -> None:
    """Write the archive, readable for its owner only, whole or not at all. Raises UserError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with (
            open(partial, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, text in sorted(made.files.items()):
                data = text.encode("utf-8", "replace")
                one = tarfile.TarInfo(f"{folder}/{name}")
                one.size, one.mode, one.mtime = len(data), 0o600, SystemClock().now() // 1_000_000
                archive.addfile(one, io.BytesIO(data))
        os.link(partial, path)  # fails where another program has made it meanwhile
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)


def _document(value: Any) -> str:
    return json.dumps(_withheld(output.plain(value)), indent=2, ensure_ascii=False) + "\n"


def _rows(values: Iterable[Any]) -> str:
    plain = (_withheld(output.plain(one)) for one in values)
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in plain)


def _withheld(value: Any) -> Any:
    """The same without the texts of names that say that they are secrets, such as those of variables."""
    if isinstance(value, Mapping):
        return {
            name: WITHHELD
            if isinstance(one, str) and one and is_secret(str(name))
            else _withheld(one)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_withheld(one) for one in value]
    return redacted(value) if isinstance(value, str) else value


def _output(client: PhalanxClient, num: int, lines: int) -> str:
    if lines == 0:
        return ""
    page = client.logs(num, tail=lines)
    return "".join(_line(one) for one in page.lines)


def _line(one: LogLine) -> str:
    where = f"attempt {one.attempt}.{one.generation} rank {one.rank} {one.stream}"
    return f"{_time(one.at)} {where} | {one.text}\n"


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")


def _summary(view: JobView, made: JobBundle) -> str:
    """What a reader needs first, as Markdown."""
    parts = [f"# {view.label}: {view.name}", f"State: **{view.state}**. {view.reason.message}"]
    if view.failure is not None:
        parts.append(
            f"```text\n{view.failure.message}\n{view.failure.traceback}".rstrip() + "\n```"
        )
    restarts = [] if view.lineage is None else view.lineage.restarts
    parts.append("## Faults")
    if restarts:
        rows = [HEADINGS, ["---"] * len(HEADINGS), *(fault_row(one) for one in restarts)]
        parts.append("\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows))
    else:
        parts.append("There were none.")
    parts.append("## Files")
    parts.append(
        "\n".join(f"* `{name}`: {len(text):,} characters" for name, text in made.files.items())
    )
    if made.missing:
        parts.append("\n".join(f"* not `{name}`: {why}" for name, why in made.missing.items()))
    parts.append(
        f"Values that are secrets by name or shape are `{WITHHELD}`: {made.num_withheld} of them."
    )
    return "\n\n".join(parts) + "\n"


def _cell(value: object) -> str:
    return "–" if value is None else str(value).replace("|", "\\|").replace("\n", " ")
