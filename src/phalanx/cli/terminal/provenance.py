"""Print what a job was made of."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from phalanx.cli.terminal import output

if TYPE_CHECKING:
    from phalanx.schemas.api.provenance import ProvenanceView


def show_provenance(view: ProvenanceView, json: bool) -> None:
    """Print it as JSON, or a name and its value on each line."""
    if json:
        output.as_json(view)
    else:
        output.facts(_lines(view))


def _lines(view: ProvenanceView) -> Iterator[tuple[str, Any]]:
    source, origin = view.source, view.cloned_from
    yield "job", view.label
    yield "owner", view.owner
    yield "submitted", output.clock_time(view.submitted_at)
    if source is not None:
        yield "commit", source.commit + (f" ({source.branch})" if source.branch else "")
        if source.num_changed:
            yield "changed", _changed(source.changed, source.num_changed)
            yield "diff digest", source.diff_digest
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
    yield "seed", view.seed
    yield "packages", _pairs({key: one for key, one in (view.python or {}).items() if one})
    yield "data", _pairs(view.data)
    if origin is not None:
        yield (
            "cloned from",
            f"j-{origin.job}" + (f", {origin.checkpoint}" if origin.checkpoint else ""),
        )
    for place in view.places:
        kinds = f" of {', '.join(place.kinds)}" if place.kinds else ""
        nodes = " ".join(place.nodes)
        yield f"attempt {place.attempt}", f"{place.pool}: {place.slots} slots{kinds} on {nodes}"
    yield "digest", view.digest


def _changed(names: list[str], count: int) -> str:
    more = count - len(names)
    return "\n".join([*names, *([f"and {more} more"] if more else [])])


def _pairs(values: dict[str, Any]) -> str:
    return "\n".join(f"{key}={value}" for key, value in values.items())
