"""The program of `phalanx data`: `python -m phalanx.train.programs.data index|verify|pack PATH …`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phalanx.errors import NotFound, PlatformError, UserError
from phalanx.kit.units import format_size, parse_size
from phalanx.train.data.readers.cache import NodeCache
from phalanx.train.data.readers.counting import rank_counts, skew
from phalanx.train.data.readers.index import KINDS, Index
from phalanx.train.data.readers.locating import load_index, locate, save_index
from phalanx.train.data.readers.packing import pack, plan_packing
from phalanx.train.data.readers.scanning import Progress, detect_kind, full_index, quiet
from phalanx.train.data.readers.verifying import Fault, verify
from phalanx.train.programs import argument

_EXIT_FAULTS = 100
_MAX_SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0 good, 1 wrong use, 100 faults found, 102 nothing there."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
    except SystemExit as stop:
        return 1 if stop.code else 0
    try:
        return _VERBS[given.verb](given)
    except PlatformError as error:
        sys.stderr.write(f"phalanx data {given.verb}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="phalanx data", description="Index training data, check it, and pack small files."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    whole = argument(_whole)
    for verb, about in (
        ("index", "read all data once; write sizes, digests and the place of every sample"),
        ("verify", "compare data with its index"),
    ):
        one = verbs.add_parser(verb, help=about, description=about)
        one.add_argument("path", help="a directory, a file, a pattern, or s3://bucket/prefix")
        one.add_argument("--json", action="store_true", help="print JSON")
        one.add_argument("--cache", help="node-local directory for objects (default: temporary)")
        one.add_argument(
            "--cache-size",
            default="20GB",
            type=argument(parse_size),
            help="limit of --cache (20GB)",
        )
        one.add_argument("--ranks", type=whole, help="ranks to count the samples of")
        one.add_argument(
            "--batch-size", type=whole, default=1, help="batch size for --ranks (default 1)"
        )
        where = "directory for the index" if verb == "index" else "the index to compare with"
        one.add_argument("--out" if verb == "index" else "--index", dest="at", help=where)
    verbs.choices["index"].add_argument(
        "--kind", choices=KINDS, help="kind of the data (default: by the files)"
    )
    about = "pack a folder of small files into tar shards with an index"
    one = verbs.add_parser("pack", help=about, description=about)
    one.add_argument("path", help="a folder, or s3://bucket/prefix")
    one.add_argument(
        "out",
        help="folder of this machine for the shards: empty, or of the same packing, interrupted",
    )
    one.add_argument(
        "--shard-size", default="256MB", type=argument(parse_size), help="size of a shard (256MB)"
    )
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(cache=None, cache_size=parse_size("20GB"), ranks=None, batch_size=1)
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"must be a whole number, at least 1, not {text}")
    return int(text)


def _index(given: argparse.Namespace) -> int:
    with _cache(given) as cache:
        place = locate(given.path, cache)
        listing = place.source.listing()
        if place.names is not None:
            listing = [row for row in listing if row[0] in place.names]
        kind = given.kind or detect_kind(listing, place.source.where)
        with _progress("indexing", sum(size for _, size in listing)) as progress:
            index = full_index(place.source, kind, place.names, progress)
        written = save_index(index, place, given.at)
    about = _about(index, given) | {"index": written}
    if given.json:
        _say(json.dumps(about, indent=1))
    else:
        _say(_summary(index, given))
        _say(f"index: {written}")
    return 0


def _pack(given: argparse.Namespace) -> int:
    if "://" in given.out:
        raise UserError(
            f"shards are packed into a folder, and {given.out} is none",
            "pack into a folder, and copy it with its index: `rclone copy FOLDER REMOTE:BUCKET/PREFIX`",
        )
    out = Path(given.out)
    with _cache(given) as cache:
        place = locate(given.path, cache)
        if place.names is not None:
            raise UserError(f"{given.path} is not a folder", "name the folder of the files")
        plan = plan_packing(place.source, given.shard_size)
        with _progress("packing", plan.total_bytes) as progress:
            there = pack(place.source, out, plan, progress)
    packed = locate(out)
    with _progress("indexing", sum(size for _, size in packed.source.listing())) as progress:
        index = full_index(packed.source, "tar", None, progress)
    written = save_index(index, packed, None)
    found = {"source": str(given.path), "shards_there": there, "files_skipped": plan.skipped}
    if given.json:
        _say(json.dumps(_about(index, given) | found | {"index": written}, indent=1))
        return 0
    if there:
        _say(f"{there} of {len(plan.shards)} shards were there already")
    if plan.skipped:
        _say(f"{plan.skipped} files with names that begin with __ were left out")
    _say(_summary(index, given))
    _say(f"index: {written}")
    return 0


def _verify(given: argparse.Namespace) -> int:
    with _cache(given) as cache:
        place = locate(given.path, cache)
        index = load_index(place, given.at)
        if index is None:
            raise NotFound(f"{given.path} has no index", "make one with `phalanx data index`")
        with _progress("verifying", index.total_bytes) as progress:
            faults = verify(place.source, index, names=place.names, progress=progress)
    if given.json:
        rows = [{"file": f.file, "what": f.what, "message": f.message} for f in faults]
        _say(json.dumps(_about(index, given) | {"ok": not faults, "faults": rows}, indent=1))
    else:
        _say(_summary(index, given))
        _print_faults(faults)
    return _EXIT_FAULTS if faults else 0


def _print_faults(faults: Sequence[Fault]) -> None:
    for fault in faults[:_MAX_SHOWN]:
        _say(f"  {fault.file}: {fault.message}")
    if len(faults) > _MAX_SHOWN:
        _say(f"  … and {len(faults) - _MAX_SHOWN} more (--json lists all)")
    _say(f"{len(faults)} faults" if faults else "all files are as indexed")


def _per_rank(index: Index, given: argparse.Namespace) -> list[int]:
    """Return the samples of each rank in one epoch; empty for text."""
    if not given.ranks or index.kind == "text":
        return []
    return rank_counts(index.num_samples, given.batch_size * given.ranks, given.ranks)


def _about(index: Index, given: argparse.Namespace) -> dict[str, Any]:
    classes, ranks = class_counts(index), _per_rank(index, given)
    spread = {}
    if classes:
        spread["classes"] = asdict(skew(list(classes.values())))
    if ranks:
        spread["ranks"] = asdict(skew(ranks))
    return {
        "schema": 1,
        "kind": index.kind,
        "num_files": index.num_files,
        "num_samples": index.num_samples,
        "total_bytes": index.total_bytes,
        "fingerprint": index.fingerprint(),
        "classes": classes,
        "ranks": ranks,
        "skew": spread,
    }


def class_counts(index: Index) -> dict[str, int]:
    """Return the samples per class; empty for data without class folders."""
    if "labels" not in index.tables:
        return {}
    labels = index.tables["labels"]
    return {name: int((labels == number).sum()) for number, name in enumerate(index.classes)}


def _summary(index: Index, given: argparse.Namespace) -> str:
    unit = "bytes of text" if index.kind == "text" else "samples"
    parts = [
        f"{index.kind}: {index.num_samples:,} {unit} in {index.num_files:,} files, "
        f"{format_size(index.total_bytes)}"
    ]
    counts = class_counts(index)
    if counts:
        parts.append(_spread("classes", list(counts.values())))
    if ranks := _per_rank(index, given):
        parts.append(_spread("ranks", ranks))
    return "\n".join([*parts, f"fingerprint: {index.fingerprint()}"])


def _spread(what: str, counts: Sequence[int]) -> str:
    found = skew(counts)
    text = f"{len(counts)} {what} of {found.smallest:,} to {found.largest:,} samples"
    uneven = found.largest != found.smallest
    return f"{text} (largest {found.largest_to_mean:.2f}x the mean)" if uneven else text


@contextlib.contextmanager
def _cache(given: argparse.Namespace) -> Iterator[NodeCache]:
    if given.cache:
        yield NodeCache(given.cache, given.cache_size)
        return
    with tempfile.TemporaryDirectory(prefix="phalanx-data-") as directory:
        yield NodeCache(directory, given.cache_size)


@contextlib.contextmanager
def _progress(what: str, total_bytes: int) -> Iterator[Progress]:
    """Show a progress bar when standard error is a terminal."""
    if not sys.stderr.isatty():
        yield quiet
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    lock = threading.Lock()
    with Bar(what, *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)

        def advance(num_bytes: int) -> None:
            with lock:
                bar.advance(task, num_bytes)

        yield advance


_VERBS = {"index": _index, "verify": _verify, "pack": _pack}

if __name__ == "__main__":
    sys.exit(main())
