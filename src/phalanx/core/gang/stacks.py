"""Analysis of the stacks that faulthandler writes: the place of each rank, and outliers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SUFFIX = ".stacks"
"""Suffix of the file beside a rank's report file that receives its stacks."""
MAX_CHARS = 16_000
"""Largest number of characters kept of one rank's stacks."""
_CURRENT = "Current thread "
_HEAD = re.compile(r"^(?:Current thread|Thread) 0x")
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
# Frames of libraries are skipped in favour of their caller's.
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|<frozen |/phalanx/(?:train|kit|core)/"
)
# Files and functions in which a rank waits for the others.
_COLLECTIVE = re.compile(
    r"/torch/distributed/|/torch/autograd/graph\.py _engine_run_backward|/torch/_tensor\.py backward"
    r"|/torch/nn/parallel/distributed\.py|/phalanx/train/gang/(?:groups|agreement|gathering)\.py"
    r"|/jax/experimental/multihost_utils\.py|/horovod/|/mpi4py/"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} in {self.name}"


def main_thread(text: str) -> tuple[Frame, ...]:
    """The stack, innermost first, of the thread that handled the signal, usually the main one."""
    frames: list[Frame] = []
    inside = False
    for line in text.splitlines():
        if _HEAD.match(line):
            # Without a current thread, the last one listed is the oldest.
            inside, frames = True, []
            current = line.startswith(_CURRENT)
        elif inside and (found := _FRAME.match(line)):
            frames.append(Frame(found["file"], int(found["line"]), found["name"]))
        elif inside and frames and current:
            break
    return tuple(frames)


def place(text: str) -> Frame | None:
    """The innermost frame of the user's own code; without one, the innermost frame."""
    frames = main_thread(text)
    own = next((one for one in frames if not _LIBRARY.search(one.file)), None)
    return own or (frames[0] if frames else None)


def waits_for_others(text: str) -> bool:
    """Whether a rank is inside a collective, or in the backward pass in which gradients are reduced."""
    for frame in main_thread(text):
        if _COLLECTIVE.search(f"{frame.file} {frame.name}"):
            return True
        if not _LIBRARY.search(frame.file):
            return False  # the script's own code, which is not waiting inside a library
    return False


def elsewhere(stacks: Mapping[int, str]) -> tuple[int, ...]:
    """The ranks at another place than the majority, which probably waits for them.

    `stacks` are texts by rank; an empty one, of a rank that did not answer, is a place of its own.
    Where no place has more than half of the ranks, as with two, those that do not wait for others are at
    fault: the ones that wait in a collective are its victims. Empty where that tells nothing.
    """
    places = {rank: place(text) for rank, text in stacks.items()}
    groups: dict[Frame | None, list[int]] = {}
    for rank, where in places.items():
        groups.setdefault(where, []).append(rank)
    most = max(groups.values(), key=len, default=[])
    if 2 * len(most) <= len(places):
        busy = {rank for rank, text in stacks.items() if not waits_for_others(text)}
        return tuple(sorted(busy)) if 0 < len(busy) < len(stacks) else ()
    return tuple(sorted(set(places) - set(most)))


def shortened(text: str) -> str:
    """The last `MAX_CHARS` characters; the main thread is at the end."""
    text = text.strip("\n")
    if len(text) <= MAX_CHARS:
        return text
    return "…\n" + text[-MAX_CHARS:].partition("\n")[2]
