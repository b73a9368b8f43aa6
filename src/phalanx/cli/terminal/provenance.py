"""Print what a job was made of."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from phalanx.cli.terminal import output
from phalanx.kit.units import format_size

if TYPE_CHECKING:
    from phalanx.schemas.api.provenance import (
        NodePlace,
        ProvenanceDiffView,
        ProvenanceView,
        SoftwareView,
    )


def show_provenance(view: ProvenanceView, how: str) -> None:
    """Print it as `json`, as `text` with a name and its value on each line, or its `diff` alone."""
    if how == "json":
        output.as_json(view)
    elif how == "diff":
        print("" if view.source is None else view.source.diff, end="")
    else:
        output.facts(_lines(view))


def show_differences(view: ProvenanceDiffView, json: bool) -> None:
    """Print what differs between two jobs; leaves with exit code 1 where something does."""
    if json:
        output.as_json(view)
    elif view.same:
        print(f"j-{view.job} and j-{view.against} were made of the same")
    else:
        rows = [[one.name, one.before or "", one.after or ""] for one in view.changes]
        output.table(["what", f"j-{view.against}", f"j-{view.job}"], rows, "nothing differs")
    if not view.same:
        raise typer.Exit(1)


def _lines(view: ProvenanceView) -> Iterator[tuple[str, Any]]:
    yield from _submitted(view)
    yield from _ran_with(view)
    yield "digest", view.digest


def _submitted(view: ProvenanceView) -> Iterator[tuple[str, Any]]:
    source, origin = view.source, view.cloned_from
    yield "job", view.label
    yield "owner", view.owner
    yield "submitted", output.clock_time(view.submitted_at)
    if source is not None:
        yield "commit", source.commit + (f" ({source.branch})" if source.branch else "")
        if source.num_changed:
            yield "changed", _changed(source.changed, source.num_changed)
            yield "diff digest", source.diff_digest
        if source.diff:
            cut = ", the beginning of it" if source.diff_cut else ""
            yield (
                "diff",
                f"{source.diff.count(chr(10))} lines{cut}: --provenance --diff prints them",
            )
    yield "code", view.code_digest
    for role, words in view.commands.items():
        name = "command" if len(view.commands) == 1 else f"command of {role}"
        yield name, words[0] if len(words) == 1 else shlex.join(words)
    yield "directory", view.cwd
    yield "image", view.image
    yield "environment", _pairs(view.env)
    if view.caller_env:
        yield "caller's", f"{len(view.caller_env)} variables; their names are in --json"
    yield "parameters", _pairs(view.params)
    yield "seed", _seeds(view)
    yield "packages", _pairs({key: one for key, one in (view.python or {}).items() if one})
    yield "data", _pairs(view.data)
    if origin is not None:
        yield (
            "cloned from",
            f"j-{origin.job}" + (f", {origin.checkpoint}" if origin.checkpoint else ""),
        )


def _ran_with(view: ProvenanceView) -> Iterator[tuple[str, Any]]:
    for input_ in view.inputs:
        size = f"{input_.num_files} files, {format_size(input_.size_bytes)}"
        yield (
            f"data {input_.name}",
            f"{input_.place}: {size}, {input_.fingerprint} ({_nodes(input_.nodes)})",
        )
    for image in view.images:
        yield "image", f"{image.image} ({_nodes(image.nodes)})"
    for software in view.software:
        yield "software", _software(software)
    for change in view.software_changes:
        yield "changed", f"{change.name} {change.before or 'absent'} → {change.after or 'absent'}"
    if view.begins_from is not None:
        begins = view.begins_from
        yield "begins from", begins.path + ("" if begins.job is None else f", of j-{begins.job}")
    for one in view.resumes:
        if one.path is not None:
            of = "" if one.job is None else f" of j-{one.job}"
            yield f"attempt {one.attempt}", f"resumed from step {one.step}{of}: {one.path}"
    for place in view.places:
        kinds = f" of {', '.join(place.kinds)}" if place.kinds else ""
        nodes = " ".join(place.nodes)
        yield f"attempt {place.attempt}", f"{place.pool}: {place.slots} slots{kinds} on {nodes}"


def _software(one: SoftwareView) -> str:
    torch = f"torch {one.torch}" if one.torch else ""
    built = f"CUDA {one.cuda}" if one.cuda else f"ROCm {one.hip}" if one.hip else ""
    parts = [
        f"{one.implementation or 'Python'} {one.python}" if one.python else "no Python",
        torch,
        built,
        f"driver {one.driver}" if one.driver else "",
        one.platform,
        f"{len(one.packages)} packages, which are in --json",
    ]
    return ", ".join(part for part in parts if part) + f" ({_nodes(one.nodes)})"


def _seeds(view: ProvenanceView) -> str | None:
    """The seed; where a later generation had another one, each with the attempt that began with it."""
    if len(view.seeds) < 2:
        return None if view.seed is None else str(view.seed)
    return "\n".join(f"{one.seed} from attempt {one.attempt}" for one in view.seeds)


def _nodes(nodes: Sequence[NodePlace]) -> str:
    """The attempts of some nodes, with the node ranks of those with several."""
    found: dict[int, list[str]] = {}
    for one in nodes:
        found.setdefault(one.attempt, []).append(str(one.node_rank))
    parts = [
        f"attempt {attempt}" + (f" node ranks {' '.join(ranks)}" if len(ranks) > 1 else "")
        for attempt, ranks in found.items()
    ]
    return ", ".join(parts)


def _changed(names: list[str], count: int) -> str:
    more = count - len(names)
    return "\n".join([*names, *([f"and {more} more"] if more else [])])


def _pairs(values: dict[str, Any]) -> str:
    return "\n".join(f"{key}={value}" for key, value in values.items())
