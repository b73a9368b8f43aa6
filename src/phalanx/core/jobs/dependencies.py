"""What a job waits for before it joins the queue: other jobs, as Slurm's dependencies of the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_DEPENDENCIES = 1000
"""Limit on the dependencies of one job."""

_NAMED = 5


class DependencyKind(StrEnum):
    """When a dependency is met."""

    AFTER = "after"  # the other job has started or ended
    AFTERANY = "afterany"  # it has ended in any way
    AFTEROK = "afterok"  # it has succeeded
    AFTERNOTOK = "afternotok"  # it has failed or was cancelled


_WANTED = {
    DependencyKind.AFTER: "start",
    DependencyKind.AFTERANY: "end",
    DependencyKind.AFTEROK: "succeed",
    DependencyKind.AFTERNOTOK: "fail",
}


@dataclass(frozen=True, slots=True)
class Dependency:
    """One condition of a job on another one."""

    job: int
    kind: DependencyKind

    def __str__(self) -> str:
        return f"j-{self.job} to {_WANTED[self.kind]}"

    def is_met(self, *, succeeded: bool) -> bool:
        """Whether the condition is met by the end of the other job; if not, it never will be."""
        if self.kind is DependencyKind.AFTEROK:
            return succeeded
        return not succeeded or self.kind is not DependencyKind.AFTERNOTOK


def waiting_text(open_ones: Sequence[Dependency]) -> str:
    """The jobs that a job waits for, as a line of text."""
    named = ", ".join(map(str, open_ones[:_NAMED]))
    more = len(open_ones) - _NAMED
    return f"waits for {named}" + (f" and {more} more" if more > 0 else "")


def find_cycle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """The names along one cycle of a graph, the first one again at the end; empty without a cycle.

    Names without an entry of their own have no edges.
    """
    done: set[str] = set()
    for start in edges:
        path: dict[str, None] = {}
        stack = [(start, iter(edges[start]))] if start not in done else []
        path.update(dict.fromkeys([start] if stack else []))
        while stack:
            name, following = stack[-1]
            found = next((one for one in following if one not in done), None)
            if found is None:
                done.add(name)
                path.pop(name)
                stack.pop()
            elif found in path:
                names = list(path)
                return [*names[names.index(found) :], found]
            else:
                path[found] = None
                stack.append((found, iter(edges.get(found, ()))))
    return []
