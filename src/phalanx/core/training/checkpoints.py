"""The manifest of a committed checkpoint, the retention rules, and the automatic interval of saves.

`checkpoint/` reads and writes the files; this module only defines the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

SCHEMA = 3
MANIFEST = "MANIFEST.json"
_OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "file")
_NAME = re.compile(r"step-(\d{8,})-([0-9a-f]{8})")
# Assumed before anything is known: one failure a day.
FAILURE_PRIOR_S = 86_400.0
FIRST_SAVE_S = 60.0  # the first save shows what saves cost
LEAST_INTERVAL_S, MOST_INTERVAL_S = 10.0, 3600.0
_CALM = 20.0  # mean distances of failures
LEAST_URGENT_S = 0.2  # between saves while failures come one after another
_WRITES = 4.0  # a disk that is always busy with checkpoints would serve nothing else

COMPRESSIONS = ("none", "zstd")


def compression(text: str) -> str:
    """One of COMPRESSIONS. Raises ValueError."""
    if text not in COMPRESSIONS:
        raise ValueError(f"must be one of {', '.join(COMPRESSIONS)}")
    return text


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint: path relative to its directory, size, digest as `algorithm:hex`.

    With an algorithm that ends in `-tree`, `chunks` holds the digest of every chunk of the file, so that
    a part of it can be checked alone; `digest` is then the digest of those.
    """

    path: str
    size_bytes: int
    digest: str
    chunks: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> FileEntry:
        """Parse an entry of a manifest. Raises KeyError or TypeError."""
        path, size, digest = body["path"], body["size_bytes"], body["digest"]
        if not (isinstance(path, str) and _is_count(size) and isinstance(digest, str)):
            raise TypeError(f"not a file entry: {body!r:.200}")
        return cls(path, size, digest, tuple(str(one) for one in body.get("chunks", ())))


@dataclass(frozen=True, slots=True)
class Position:
    """The position of training in its data.

    `epoch` is the user's epoch, `epoch_pass` counts whole passes over the loader inside it, `total_passes`
    all passes since the start (it selects the permutation; equal to `epoch` in an ordinary loop) and
    `consumed` the positions of the current pass that committed steps have used.
    """

    epoch: int = 0
    epoch_pass: int = 0
    total_passes: int = 0
    consumed: int = 0

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Position:
        """Parse the position of a manifest. Raises TypeError."""
        found = cls(**body)
        if not all(_is_count(value) for value in asdict(found).values()):
            raise TypeError(f"not a position: {body!r:.200}")
        return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of one committed checkpoint."""

    name: str  # `step-<step>-<hex>`
    step: int  # last step that it includes
    position: Position  # position in the training data
    attempt: int  # attempt that wrote it
    generation: int  # generation that wrote it
    commit: int  # grows along a lineage
    parent: str | None  # name of the checkpoint that it continues from; None: began at step 0
    world_size: int  # ranks that wrote it
    reference_world: int  # world size to which the script's batch size refers
    global_batch: int | None  # samples of a step over all ranks
    created_at: int  # microseconds UTC
    why: str  # reason of the save: interval, stop, final, …
    files: tuple[FileEntry, ...]  # all files but the manifest
    job: str | None = None  # job that wrote it; None: outside the platform
    job_uid: str | None = None  # the same, unique over all databases; None: before there were any
    mesh: Mapping[str, int] = field(default_factory=dict)  # size of each dimension of the layout
    strategy: str = "ddp"  # parallel strategy
    code: Mapping[str, Any] = field(default_factory=dict)  # `script`: name of the script
    versions: Mapping[str, str] = field(default_factory=dict)  # of the software that wrote it
    threads: int = 1  # CPU threads of each rank
    device: str = "cpu"  # type of the device
    metrics: Mapping[str, Any] = field(default_factory=dict)  # values most recently logged
    data: Mapping[str, Any] = field(default_factory=dict)  # `num_samples`, `fingerprint`
    encryption: Mapping[str, str] | None = None  # parameters of the encryption; None: plain
    root: str = ""  # first checkpoint of its line; empty: written by an earlier release
    beginning: int = 0  # attempts of the job before the owner had it begin anew; 0: never
    provenance: str = ""  # digest over what its job was made of; empty: not known
    schema: int = SCHEMA  # version of this format

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key by age: attempt, generation, commit; never the step."""
        return (self.attempt, self.generation, self.commit)

    @property
    def epoch(self) -> int:
        """The user's epoch."""
        return self.position.epoch

    @property
    def size_bytes(self) -> int:
        """Total size of its files without the manifest."""
        return sum(entry.size_bytes for entry in self.files)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` gives an equal manifest back."""
        body = asdict(self)
        body["epoch"] = self.epoch
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Manifest:
        """Read back what `to_json` of this or an earlier release wrote.

        Fields of later releases are ignored. Raises ValueError when it is not a manifest of a schema
        this version reads.
        """
        body = migrated(body)
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in body.items() if key in known}
        try:
            values["position"] = Position.from_json(values["position"])
            values["files"] = tuple(FileEntry.from_json(entry) for entry in values["files"])
            manifest = cls(**values)
            _require_types(manifest)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a manifest: {error}") from error
        if _NAME.fullmatch(manifest.name) is None:
            raise ValueError(f"not a checkpoint name: {manifest.name!r}")
        _check_paths([entry.path for entry in manifest.files])
        return manifest


def _check_paths(paths: Sequence[str]) -> None:
    """Refuse names of files that lie outside of the checkpoint, or that stand for the same file.

    Every reader, writer and remover of files goes by these names. Raises ValueError.
    """
    for path in paths:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in path or parts == [MANIFEST]:
            raise ValueError(f"{path[:200]!r} is not a valid name of a file")
    if len(set(paths)) != len(paths):
        raise ValueError("a file is named twice")


_COUNTS = ("step", "attempt", "generation", "commit", "created_at", "beginning", "threads")
_TEXTS = ("name", "why", "strategy", "device", "root", "provenance")
_OPTIONAL_TEXTS = ("parent", "job", "job_uid")
_OBJECTS = ("mesh", "code", "versions", "metrics", "data")


def _require_types(manifest: Manifest) -> None:
    """Raise TypeError where a field of a manifest has a value of another type."""

    def require(names: Iterable[str], fits: Callable[[Any], bool]) -> None:
        for name in names:
            if not fits(getattr(manifest, name)):
                raise TypeError(f"{name} is {getattr(manifest, name)!r:.100}")

    require(_COUNTS, _is_count)
    require(("world_size", "reference_world"), lambda value: _is_count(value) and value > 0)
    require(("global_batch",), lambda value: value is None or _is_count(value))
    require(_TEXTS, lambda value: isinstance(value, str))
    require(_OPTIONAL_TEXTS, lambda value: value is None or isinstance(value, str))
    require(_OBJECTS, lambda value: isinstance(value, Mapping))
    require(("encryption",), lambda value: value is None or isinstance(value, Mapping))


def migrated(body: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest of any schema so far, as one of the newest. Raises ValueError for others.

    1: one state file, written by rank 0, with one digest over all of it. 2: a file for each rank that
    holds parts of tensors, with digests of chunks; an entry without them stays readable as it is. 3: tensor
    files are in the safetensors format; nothing else differs.
    """
    if body.get("schema") not in range(1, SCHEMA + 1):
        raise ValueError(f"manifest schema {body.get('schema')!r}, expected 1 to {SCHEMA}")
    return {**body, "schema": SCHEMA}


def checkpoint_name(step: int, suffix: str) -> str:
    """`step-00001200-1a2b3c4d`; `suffix` is eight hex digits that make the name unique."""
    name = f"step-{step:08d}-{suffix}"
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"not a checkpoint name: {name!r}")
    return name


def step_of(name: str) -> int | None:
    """The step in the name of a checkpoint; None for any other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def is_checkpoint_name(name: str) -> bool:
    """Whether a directory of this name may hold a committed checkpoint."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the `count` checkpoints with the highest (`max`) or lowest (`min`) value of a metric."""

    metric: str
    mode: str = "max"
    count: int = 1

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"keep.best.mode: {self.mode!r} is neither 'min' nor 'max'")
        if self.count < 1:
            raise ValueError("keep.best.count: must be at least 1")

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` improves on `than`; NaN never does."""
        if value != value:
            return False
        return than is None or (value > than if self.mode == "max" else value < than)


@dataclass(frozen=True, slots=True)
class Keep:
    """The retention rules of checkpoints; without `last` and `age_s` all checkpoints are kept.

    Kept are the newest `last` checkpoints, the `best` ones, those at multiples of `every` steps and
    those younger than `age_s` seconds.
    """

    last: int | None = None
    best: Best | None = None
    every: int | None = None
    age_s: float | None = None

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise ValueError("keep.last: must be at least 1; one checkpoint always stays")
        if self.every is not None and self.every < 1:
            raise ValueError("keep.every: must be a number of steps, at least 1")
        if self.age_s is not None and not self.age_s > 0:
            raise ValueError("keep.age_s: must be more than 0 seconds")

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Keep:
        """From `{"last": 3, "best": {"metric": …, "mode": …, "count": …}, "every": 1000, "age_s": …}`.

        Raises ValueError.
        """
        unknown = set(body) - {"last", "best", "every", "age_s"}
        if unknown:
            text = f"keep: unknown key {sorted(unknown)[0]!r}; use last, best, every and age_s"
            raise ValueError(text)
        best = body.get("best")
        try:
            return cls(
                body.get("last"),
                Best(**best) if best else None,
                body.get("every"),
                body.get("age_s"),
            )
        except TypeError as error:
            raise ValueError(f"keep.best: {error}") from error


def far_prefix(url: str) -> str:
    """An object store's prefix as it is used, without a slash at its end. Raises ValueError."""
    scheme, _, rest = url.partition("://")
    if scheme not in _OBJECT_STORES or not rest.strip("/"):
        raise ValueError("must be an object store's prefix, for example s3://bucket/prefix")
    if "@" in rest or "?" in rest:
        raise ValueError("credentials and options come from the ranks' environment, not from here")
    return url.rstrip("/")


def is_of_job(manifest: Manifest, job_uid: str | None) -> bool:
    """Whether a job may take a checkpoint for its own. Earlier releases wrote none of these names.

    `job_uid` None: a run outside the platform, or one that may continue from any job's.
    """
    return job_uid is None or manifest.job_uid in (None, job_uid)


def line_of(manifest: Manifest, manifests: Mapping[str, Manifest]) -> str:
    """The first checkpoint of the line that a checkpoint belongs to, by name.

    A line is what descends from one start at step 0. Retention deletes the start itself, so newer
    checkpoints carry its name; for those of earlier releases the oldest known ancestor gives it.
    """
    seen: set[str] = set()
    while not manifest.root and manifest.parent and manifest.name not in seen:
        seen.add(manifest.name)
        if manifest.parent not in manifests:
            return manifest.parent
        manifest = manifests[manifest.parent]
    return manifest.root or manifest.name


def root_after(parent: Manifest | None, name: str) -> str:
    """The root of a new checkpoint `name` that continues from `parent`."""
    if parent is None:
        return name
    return parent.root or parent.parent or parent.name


def lineages(manifests: Mapping[str, Manifest], beginning: int = 0) -> list[Manifest]:
    """All checkpoints in the order a resume should try them.

    Line by line: within a line its head (highest attempt, generation, commit) and the head's ancestors
    through `parent`, then the same again with what is left, so that a broken chain or a fenced-off branch
    comes last, not never. A line that the owner began anew comes before those it replaces; among others
    the longest comes first, then the oldest: a start from step 0 without the owner's word, as after a
    missing mount, never outranks the training that it left behind. Lines from before `beginning` are
    left out.
    """
    lines: dict[str, dict[str, Manifest]] = {}
    for one in manifests.values():
        if one.beginning >= beginning:
            lines.setdefault(line_of(one, manifests), {})[one.name] = one

    def rank(line: Mapping[str, Manifest]) -> tuple[int, int, tuple[int, int, int], str]:
        members = line.values()
        first = min(members, key=_age)
        return (
            -max(one.beginning for one in members),
            -max(one.step for one in members),
            first.order,
            first.name,
        )

    return [one for line in sorted(lines.values(), key=rank) for one in _from_head(line)]


def _from_head(line: Mapping[str, Manifest]) -> list[Manifest]:
    left = dict(line)
    tried: list[Manifest] = []
    while left:
        at: Manifest | None = max(left.values(), key=_age)
        while at is not None:
            tried.append(left.pop(at.name))
            at = left.get(at.parent) if at.parent else None
    return tried


def _age(one: Manifest) -> tuple[tuple[int, int, int], int, str]:
    return one.order, one.created_at, one.name


AT_TARGET = "target"
"""Why a trial has saved at its target."""


def expired(
    manifests: Mapping[str, Manifest],
    keep: Keep,
    now: int | None = None,
    head: str | None = None,
    *,
    keep_targets: bool = True,
    pinned: Collection[str] = (),
) -> list[Manifest]:
    """The checkpoints that `keep` does not retain, oldest first.

    Never the head (by default what a resume would take), and never a checkpoint that it does not replace:
    one of another line, or one with more steps. None that is `pinned`, by its name. With `keep_targets`
    also none that a trial made at its target: other trials may begin from it. Of several checkpoints of
    one step the newest counts.
    `now` (microseconds UTC) is what ages are counted from; without it nothing is too old.
    """
    if (keep.last is None and keep.age_s is None) or not manifests:
        return []
    at = manifests[head] if head is not None and head in manifests else lineages(manifests)[0]
    line = line_of(at, manifests)
    # Checkpoints that the head replaces: its ancestors, and branches that it has overtaken.
    newest_first = sorted(
        (m for m in manifests.values() if m.step <= at.step and line_of(m, manifests) == line),
        key=_age,
        reverse=True,
    )
    by_step: dict[int, Manifest] = {at.step: at}
    for m in newest_first:
        by_step.setdefault(m.step, m)
    steps = sorted(by_step.values(), key=_age, reverse=True)
    kept = {at.name} | {m.name for m in steps[: keep.last or 0]}
    if keep_targets:
        kept |= {m.name for m in newest_first if m.why == AT_TARGET}
    if keep.best is not None:
        best, name = best_of(newest_first, keep.best), keep.best.metric
        same = {m.name: by_step[m.step] for m in best}
        kept |= {
            (same[m.name] if same[m.name].metrics.get(name) == m.metrics[name] else m).name
            for m in best
        }
    if keep.every is not None:
        kept |= {m.name for m in steps if m.step % keep.every == 0}
    if keep.age_s is not None:
        oldest = -math.inf if now is None else now - keep.age_s * 1e6
        kept |= {m.name for m in steps if m.created_at >= oldest}
    return [m for m in reversed(newest_first) if m.name not in kept and m.name not in pinned]


def expired_targets(
    manifests: Mapping[str, Manifest], keep: Keep, *, is_over: bool
) -> list[Manifest]:
    """The checkpoints of a trial's targets that `keep` does not retain, oldest first.

    Never the newest of them, unless the trial is over: it goes on from there.
    """
    targets = [one for one in manifests.values() if one.why == AT_TARGET]
    newest = max(targets, key=_age, default=None)
    gone = expired(manifests, keep, keep_targets=False)
    return [one for one in gone if one.why == AT_TARGET and (is_over or one is not newest)]


def best_of(manifests: list[Manifest], best: Best) -> list[Manifest]:
    """The `best.count` best by their metric; among equals the oldest, nearest to its evaluation."""
    sign = -1.0 if best.mode == "max" else 1.0
    scored = [m for m in manifests if _number(m.metrics.get(best.metric)) is not None]
    scored.sort(key=lambda m: (sign * float(m.metrics[best.metric]), m.order))
    return scored[: best.count]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return float(value)


def mean_time_between_failures_s(num_failures: int, run_s: float) -> float:
    """The job's run time over its failures, with one more failure in `FAILURE_PRIOR_S`."""
    return (FAILURE_PRIOR_S + max(0.0, run_s)) / (1 + num_failures)


def recent_mean_time_between_failures_s(failed_at: Sequence[int], now: int) -> float:
    """The mean time between the newest failures; infinite where there were fewer than two.

    `failed_at` are their times, oldest first, and `now` the present, in microseconds UTC. The shortest of
    the means over the last two, three and so on counts, so a series of failures is seen at its second
    one. A series is over after a calm of `_CALM` times its mean distance, for which it would last with a
    probability of exp(-`_CALM`).
    """
    if not failed_at:
        return math.inf
    calm_s, means = (now - failed_at[-1]) / 1e6, [math.inf]
    for count, at in enumerate(reversed(failed_at), start=1):
        distance_s = (failed_at[-1] - at) / 1e6 / max(1, count - 1)
        if count > 1 and calm_s <= _CALM * distance_s:
            means.append((now - at) / 1e6 / count)
    return max(0.0, min(means))


def save_interval_s(stall_s: float, write_s: float, between_failures_s: float) -> float:
    """Seconds between saves that lose the least training time, after Young (1974) and Daly (2006).

    `stall_s` is what training waits for one save, `write_s` what all of its writing takes. With a stall
    C and a time M between failures, half an interval is lost at each failure, so the optimum is near
    sqrt(2 C M); Daly's terms matter where C is not small against M.
    """
    best = _least_loss_s(stall_s, between_failures_s)
    return min(MOST_INTERVAL_S, max(LEAST_INTERVAL_S, _WRITES * write_s, best))


def urgent_interval_s(write_s: float, stall_s: float, between_failures_s: float) -> float:
    """Seconds between saves while failures come faster than planned saves.

    The interval of least loss without the limits that spare the disk, but at most a quarter of the time
    between failures, so that a generation that lives about as long as the ones before it saves.
    """
    best = min(_least_loss_s(stall_s, between_failures_s), between_failures_s / 4)
    return max(LEAST_URGENT_S, write_s, best)


def _least_loss_s(stall_s: float, between_failures_s: float) -> float:
    stall_s, mean = max(stall_s, 1e-4), between_failures_s
    part = stall_s / (2 * mean) if mean > 0 else math.inf
    if part >= 1:
        return mean
    return math.sqrt(2 * stall_s * mean) * (1 + math.sqrt(part) / 3 + part / 9) - stall_s
