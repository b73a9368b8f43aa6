"""Readers of job traces; a parse error names the line and the expected content."""

from __future__ import annotations

import csv
import gzip
import math
import random
from collections.abc import Iterator
from pathlib import Path

from phalanx.core.gang.placement import Node
from phalanx.errors import NotFound, UserError
from phalanx.sim.jobs import TraceJob, fewest_nodes, gang_of

SENSITIVITIES = (0.0, 0.1, 0.3, 0.8)
WEIGHTS = (0.25, 0.35, 0.25, 0.15)
LOCALITY = {"low": 0.1, "mid": 0.3, "high": 0.8}


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    if not path.exists():
        raise NotFound(f"no trace at {path}")
    open_it = gzip.open if path.suffix == ".gz" else open
    try:
        with open_it(path, "rt", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path}: no column {', '.join(missing)}")
            yield from enumerate(reader, start=2)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _number(path: Path, line: int, row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except (ValueError, TypeError):  # a line that is too short has None
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{path}, line {line}: {name} is {row[name]!r}, not a number")
    return value


def _slots(path: Path, line: int, row: dict[str, str], name: str) -> int:
    slots = int(_number(path, line, row, name))
    if slots < 1:
        raise UserError(f"{path}, line {line}: {name} is {row[name]!r}, a job has at least 1")
    return slots


def philly(
    path: Path,
    start_s: float,
    end_s: float,
    node_size: int = 8,
    min_slots: int = 1,
    seed: int = 0,
    longest_s: float = float("inf"),
) -> list[TraceJob]:
    """Columns submit_s, duration_s, gpus, vc. Sensitivity to placement is drawn by `seed`.

    Arrivals are counted from the first job in the window `[start_s, end_s)`.
    """
    rng = random.Random(seed)
    jobs: list[TraceJob] = []
    first: float | None = None
    for line, row in _rows(path, ("submit_s", "duration_s", "gpus", "vc")):
        at_s = _number(path, line, row, "submit_s")
        if not start_s <= at_s < end_s:
            continue
        sensitivity = rng.choices(SENSITIVITIES, WEIGHTS)[0]
        slots = int(_number(path, line, row, "gpus"))
        if slots < min_slots:
            continue
        first = at_s if first is None else first
        duration_s = min(max(_number(path, line, row, "duration_s"), 1.0), longest_s)
        shape = gang_of(slots, node_size)
        jobs.append(
            TraceJob(
                len(jobs) + 1,
                at_s - first,
                duration_s,
                shape,
                project=row["vc"],
                kind=row["vc"],
                sensitivity=sensitivity,
            )
        )
    return jobs


def llm_mix(path: Path, node_size: int = 8, longest_s: float = 864_000.0) -> list[TraceJob]:
    """The mix of pre-training, fine-tuning, evaluation and debugging jobs."""
    needed = ("submit_s", "duration_s", "gpus", "tenant", "kind", "locality", "ckpt_s")
    jobs: list[TraceJob] = []
    for line, row in _rows(path, needed):
        shape = gang_of(_slots(path, line, row, "gpus"), node_size)
        jobs.append(
            TraceJob(
                len(jobs) + 1,
                _number(path, line, row, "submit_s"),
                min(_number(path, line, row, "duration_s"), longest_s),
                shape,
                project=row["tenant"],
                kind=f"{row['tenant']}/{row['kind']}",
                label=row["kind"],
                sensitivity=LOCALITY.get(row["locality"], 0.0),
                checkpoint_s=_number(path, line, row, "ckpt_s"),
            )
        )
    return jobs


def tiresias(path: Path, node_size: int = 8) -> list[TraceJob]:
    """Columns num_gpu, submit_time, duration."""
    jobs: list[TraceJob] = []
    for line, row in _rows(path, ("num_gpu", "submit_time", "duration")):
        shape = gang_of(_slots(path, line, row, "num_gpu"), node_size)
        at_s = _number(path, line, row, "submit_time")
        duration_s = _number(path, line, row, "duration")
        jobs.append(TraceJob(len(jobs) + 1, at_s, duration_s, shape))
    return jobs


# Hours on one slot of each application of the Sia workloads, by the size classes of their paper (small
# 0-1, medium 1-10, large 10-100 GPU-hours); the traces contain no run times.
_SIA_HOURS = {"cifar10": 0.6, "ncf": 0.4, "bert": 4.0, "deepspeech2": 5.0, "yolov3": 28.0}
_SIA_OTHER = 60.0


def sia_hours(application: str) -> float:
    """Return the assumed hours on one slot of an application of the Sia workloads."""
    return _SIA_HOURS.get(application, _SIA_OTHER)


def sia(path: Path, node_size: int = 4) -> list[TraceJob]:
    """Columns time, application, num_replicas; rigid at the size their users asked for."""
    jobs: list[TraceJob] = []
    for line, row in _rows(path, ("time", "application", "num_replicas")):
        slots = _slots(path, line, row, "num_replicas")
        name = row["application"]
        hours = sia_hours(name)
        jobs.append(
            TraceJob(
                len(jobs) + 1,
                _number(path, line, row, "time"),
                hours * 3600.0 / slots**0.8,
                gang_of(slots, node_size),
                kind=name,
                label=name,
            )
        )
    return jobs


def openb(path: Path, node_size: int = 8, longest_s: float = float("inf")) -> list[TraceJob]:
    """Read the pods of the openb trace with whole devices; the other pods are left out."""
    jobs: list[TraceJob] = []
    needed = ("num_gpu", "gpu_milli", "creation_time", "deletion_time", "qos")
    for line, row in _rows(path, needed):
        slots = int(_number(path, line, row, "num_gpu"))
        if slots < 1 or _number(path, line, row, "gpu_milli") < 1000:
            continue
        at_s = _number(path, line, row, "creation_time")
        lasts_s = max(_number(path, line, row, "deletion_time") - at_s, 1.0)
        jobs.append(
            TraceJob(
                len(jobs) + 1,
                at_s,
                min(lasts_s, longest_s),
                gang_of(slots, node_size),
                kind=row["qos"],
                priority=60 if row["qos"] == "LS" else 50,
            )
        )
    return sorted(jobs, key=lambda job: job.submit_s)


def swf(path: Path, node_size: int = 8, longest_s: float = float("inf")) -> list[TraceJob]:
    """The standard workload format: 18 fields a line, `;` begins a comment.

    Used: 2 submit time, 4 run time, 8 (or 5) processors, 9 requested time, 12 user, 14 application,
    15 queue. Gangs take equal shares of the fewest nodes, rounded up.
    """
    if not path.exists():
        raise NotFound(f"no trace at {path}")
    jobs: list[TraceJob] = []
    # Comments of old logs contain names in unknown encodings.
    for number, text in enumerate(_text(path, errors="replace").splitlines(), start=1):
        line = text.split(";", 1)[0].split()
        if not line:
            continue
        if len(line) < 11:
            raise UserError(f"{path}, line {number}: {len(line)} fields, a job has 18")
        try:
            values = [float(word) for word in line]
            if not all(map(math.isfinite, values)):
                raise ValueError
        except ValueError:
            raise UserError(f"{path}, line {number}: a field is not a number") from None
        slots = int(values[7] if values[7] > 0 else values[4])
        if slots <= 0 or values[3] < 0:
            continue
        jobs.append(
            TraceJob(
                len(jobs) + 1,
                values[1],
                min(max(values[3], 1.0), longest_s),
                fewest_nodes(slots, node_size),
                project=line[14] if len(line) > 14 else "",
                kind=f"{line[11]}/{line[13]}" if len(line) > 13 else "",
                limit_s=values[8] if values[8] > 0 else None,
            )
        )
    return jobs


def _text(path: Path, errors: str = "strict") -> str:
    open_it = gzip.open if path.suffix == ".gz" else open
    try:
        with open_it(path, "rt", errors=errors) as file:
            return file.read()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def lingjun_nodes(path: Path, num_slots: int = 8) -> list[Node]:
    """The hosts of a three-tier Clos network: core, aggregation and top-of-rack labels."""
    nodes = []
    for _, row in _rows(path, ("host", "core", "agg", "tor")):
        agg = f"{row['core']}/{row['agg']}"
        domains = (("core", row["core"]), ("agg", agg), ("rack", f"{agg}/{row['tor']}"))
        nodes.append(Node(row["host"], "lingjun", row["host"], num_slots, 96, 0, domains=domains))
    return nodes


def grid_nodes(
    num_nodes: int, node_size: int = 8, rack: int = 16, block: int = 8, pool: str = "pool"
) -> list[Node]:
    """Equal nodes in racks of `rack` nodes and blocks of `block` racks."""
    nodes = []
    for i in range(num_nodes):
        domains = (("block", f"b{i // (rack * block):03d}"), ("rack", f"r{i // rack:04d}"))
        name = f"{pool}-{i:05d}"
        nodes.append(Node(name, pool, name, node_size, 96, 0, domains=domains))
    return nodes
