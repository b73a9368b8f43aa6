"""Commands of the runbooks, as they are printed, and what their output must contain.

Blocks marked `sh` are commands. A `text` block right behind one is a part of their output: each of its
lines is found in this order, and `…` stands for any text. Names such as `j-12` stand for those of an alert;
`docs/runbooks/index.md` lists them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*.md"))
#: The names that stand for those of an alert.
NAMES = ("https://phalanx.example.com", "s3://ckpt", "j-12", "n3", "gpu", "h100")
_BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\s*```text\n(.*?)^```)?", re.M | re.S)

Ran = tuple[int, str]
"""The exit code of a command, and all that it wrote."""


@dataclass(frozen=True, slots=True)
class RunbookBlock:
    """Commands that are printed together, and lines of their output."""

    page: str  # the name of the file
    commands: tuple[str, ...]  # as they are printed
    expected: tuple[str, ...]  # lines of their output, in order


def blocks(page: str) -> list[RunbookBlock]:
    """The blocks of one page, such as `PhalanxDown`, from the top."""
    text = (RUNBOOKS / f"{page}.md").read_text()
    found = []
    for body, output in _BLOCK.findall(text):
        commands = tuple(line for line in body.replace("\\\n", " ").splitlines() if line.strip())
        found.append(RunbookBlock(page, commands, tuple(output.splitlines())))
    return found


def words_of(command: str, names: Mapping[str, str]) -> list[str]:
    """The arguments of `phalanx` in a printed command, with the names of a real alert."""
    words = shlex.split(command, comments=True)
    assert words[0] == "phalanx", f"{command}: only commands of phalanx stand in `sh` blocks"
    return [_filled(word, names) for word in words[1:]]


def _filled(word: str, names: Mapping[str, str]) -> str:
    for name in NAMES:
        if word == name or word.startswith((f"{name}/", f"{name}@")):
            assert name in names, f"nothing stands for {name}"
            return names[name] + word.removeprefix(name)
    return word


def run_block(
    block: RunbookBlock, names: Mapping[str, str], run: Callable[[list[str]], Ran]
) -> Iterator[str]:
    """Run a block; yields what is wrong with it."""
    said = ""
    for command in block.commands:
        words = words_of(command, names)
        code, output = run(words)
        said += output
        if code != 0:
            yield f"{block.page}: `{command}` ended with {code}: {output[-1500:]}"
    at = 0
    for line in block.expected:
        wanted = re.compile(r".*?".join(re.escape(_said(part, names)) for part in _parts(line)))
        found = wanted.search(said, at)
        if found is None:
            yield f"{block.page}: {line!r} is not in the output of {block.commands}:\n{said}"
            return
        at = found.end()


def _parts(line: str) -> list[str]:
    return [part.strip() for part in line.split("…")]


def _said(part: str, names: Mapping[str, str]) -> str:
    """A part of an expected line with the names of a real alert."""
    return re.sub(
        r"(?<![\w-])(j-12|n3|gpu|h100)(?![\w-])", lambda found: names.get(found[0], found[0]), part
    )
