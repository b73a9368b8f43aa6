"""The rules of the house as functions: each reads a source tree and returns its violations.

Run as a program it prints them: `python tests/house/rules.py [RULE …] [--room train/step]`.
The tests beside this file run every rule on the repository, and on a planted violation.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MAX_FUNCTION = 60
MAX_CLASS = 300
MAX_FILE = 800
MIN_FILE = 40
MAX_MODULES = 15
MAX_FIELDS = 8
MAX_FORMAT_SKIPS = 20

#: Files under MIN_FILE lines, each with the reason for which it is a file of its own.
SHORT_FILES: dict[str, str] = {
    "services/workflow/arrays.py": "the turns of arrays know nothing of dependencies",
    "store/schema/logs.py": "one table; the store of logs is above it, a migration beside it",
    "store/workflow/arrays.py": "the rows of turns know nothing of those of dependencies",
    "core/search/rungs/arrival.py": "the rules of promotion and of stopping both stand on it",
    "schemas/frameworks.py": "reads entry points; supervisors import it without the models of the spec",
    "train/folders.py": "a public name of the library",
    "train/jax.py": "a public name of the library",
    "train/readers.py": "a public name of the library",
    "schemas/api/audit.py": "the audit log is a subject of its own, apart from accounts",
    "server/routers/tracking/runs.py": "queries over runs are a subject of their own",
    "sdk/traces.py": "traces are a subject of their own",
    "services/tenancy/audit.py": "the audit log is a subject of its own, apart from accounts",
    "store/engines/append_only.py": "the tables and a migration share it; it is below both",
    "store/migrations/env.py": "Alembic runs the file of this name",
    "cli/exits.py": "the exit codes are an interface of their own, below all of cli",
}

#: Pronouns for persons. Jobs, processes and modules are things.
PRONOUNS = re.compile(
    r"\b(who|whom|whose|whoever|nobody|somebody|anybody|everybody|someone|anyone|everyone)\b", re.I
)

#: Words of the private vocabulary. The glossary has the term to use.
BANNED = (
    "appetite",
    "barren",
    "cargo",
    "estate",
    "hero",
    "heroes",
    "hunger",
    "luggage",
    "prey",
    "strands",
    "vigil",
    "zygote",
    "zygotes",
    "holes",
    "hole",
)

#: Stored spellings that contain such a word: old data is read with them.
STORED = ("max_barren", '="barren"', "hole_ttl_s")

#: Identifiers that are ordinary English elsewhere: banned as names of classes and modules only.
BANNED_NAMES = {
    "Apart",
    "Around",
    "Cargo",
    "Ear",
    "Ground",
    "Hole",
    "Keeper",
    "Luggage",
    "Picture",
    "Sight",
    "StoredHole",
    "Surroundings",
    "Terms",
    "Vault",
    "Vigil",
    "Voice",
    "Witness",
    "boxes",
    "care",
    "carrier",
    "earlier",
    "islands",
    "living",
    "making",
    "picking",
    "standing",
    "story",
}

#: Attributes of foreign objects that `train` sets, as patterns of the assigned expression, and whose they
#: are: Python, torch and the user's libraries offer no other way. Our own objects have methods.
FOREIGN: dict[str, str] = {
    "*.grad": "a parameter",
    "*.data": "a parameter",
    "*.requires_grad": "a parameter",
    "*.step": "the user's optimizer or scheduler",
    "*.zero_grad": "the user's optimizer",
    "*.forward": "the user's model",
    "sys.*": "the interpreter",
    "ctx.*": "the context of an autograd function",
    "module.__class__": "the user's batch norm, which stays the same object",
    "nn.Module.register_parameter": "torch, while a model is made without memory",
    "functional.scaled_dot_product_attention": "torch, while the cost of a model is measured",
    "loading.worker._worker_info": "torch's data worker, while a stream is read",
    "process.current_process().authkey": "multiprocessing, in a forked rank",
    "part.training": "the user's modules, which get their modes back",
    "scheduler.state_dict": "the user's scheduler",
    "commit._wrapped_by_lr_sched": "a mark that torch's schedulers look for",
    "torch.backends.cudnn.benchmark": "torch",
    "loader.exec_module": "the import system's loader of a module of Ray",
    "module.*": "a library in a script with hooks",
    "study.*": "Optuna's class of studies, in a script with hooks",
    "context.experiment_driver_staging_path": "Ray's folder of a search",
    "controller.*": "Ray Tune's controller, which also keeps its state",
    "trial.run_metadata.*": "a trial of Ray Tune, while it is restored",
    "header.size": "a header of the standard library's tarfile",
    "header.mode": "a header of the standard library's tarfile",
    "error.__*": "an exception, shown without its context",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: where, and what is wrong."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules(source: Path) -> dict[str, Path]:
    """Every module below `source`, by its dotted name without the package `source` itself."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        if "migrations/versions" in path.as_posix() or "_pb2" in path.stem:
            continue
        parts = path.relative_to(source).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def _imports(source: Path) -> dict[str, set[str]]:
    """The modules that each module imports: also lazily, and for type checkers only."""
    known = modules(source)
    root = source.name
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for target in targets:
                if target != root and not target.startswith(f"{root}."):
                    continue
                inner = target.removeprefix(root).lstrip(".")
                if inner not in known:
                    inner = inner.rpartition(".")[0]
                if inner != name and inner in known:
                    found[name].add(inner)
    return found


def circles(source: Path) -> list[Violation]:
    """Modules that import one another, directly or through others."""
    graph = _imports(source)
    found = []
    for group in _strongly_connected(graph):
        if len(group) > 1:
            found.append(Violation(min(group), f"an import circle: {', '.join(sorted(group))}"))
    return found


def _strongly_connected(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Tarjan's algorithm, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in graph:
        if root in index:
            continue
        work: list[tuple[str, Iterator[str]]] = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    group, stack[at:] = stack[at:], []
                    on_stack.difference_update(group)
                    yield group
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(sorted(graph[following]))))
            elif following in on_stack:
                low[node] = min(low[node], index[following])


def pairs(source: Path) -> list[Violation]:
    """Two rooms, or two modules of a room, of which each imports the other."""
    edges: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name, targets in _imports(source).items():
        here = name.split(".")
        for target in targets:
            there = target.split(".")
            depth = 0
            while depth < min(len(here), len(there)) and here[depth] == there[depth]:
                depth += 1
            if depth < min(len(here), len(there)):
                room = ".".join(here[:depth])
                edges[room, here[depth], there[depth]].append(f"{name} -> {target}")
    found = []
    for (room, one, other), uses in sorted(edges.items()):
        back = edges.get((room, other, one))
        if one < other and back:
            fewer = min(uses, back, key=len)
            found.append(
                Violation(
                    room or source.name,
                    f"{one} <-> {other}: {len(uses)} and {len(back)}: {fewer[:5]}",
                )
            )
    return found


def class_names(source: Path) -> list[Violation]:
    """Public class names that are given more than once."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in modules(source).items():
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    return [
        Violation(where[0], f"class {name} is also in {', '.join(where[1:])}")
        for name, where in sorted(places.items())
        if len(where) > 1
    ]


def sizes(source: Path) -> list[Violation]:
    """Functions, classes, files and folders over their limit, and files under theirs."""
    found = []
    count: dict[str, int] = defaultdict(int)
    for name, path in modules(source).items():
        lines = len(path.read_text().splitlines())
        relative = path.relative_to(source).as_posix()
        if path.name != "__init__.py":
            count[path.parent.relative_to(source).as_posix()] += 1
        if lines > MAX_FILE:
            found.append(Violation(name, f"{lines} lines (limit {MAX_FILE})"))
        if lines < MIN_FILE and not path.name.startswith("__") and relative not in SHORT_FILES:
            found.append(
                Violation(name, f"{lines} lines: merge it, or give the reason in SHORT_FILES")
            )
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                limit = MAX_FUNCTION
            elif isinstance(node, ast.ClassDef):
                limit = MAX_CLASS
            else:
                continue
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size -= _docstring_lines(node)
            if size > limit:
                found.append(
                    Violation(
                        f"{name}:{node.lineno}", f"{node.name} has {size} lines (limit {limit})"
                    )
                )
    for folder, number in sorted(count.items()):
        if number > MAX_MODULES:
            found.append(Violation(folder, f"{number} modules (limit {MAX_MODULES})"))
    return found


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's docstring: documentation does not count against its size."""
    if ast.get_docstring(node, clean=False) is None:
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def fields(source: Path) -> list[Violation]:
    """Dataclasses with more than MAX_FIELDS fields of which some are not documented at the field."""
    found = []
    for name, path in modules(source).items():
        lines = path.read_text().splitlines()
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.ClassDef) or not any(
                _is_dataclass(one) for one in node.decorator_list
            ):
                continue
            entries = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            if len(entries) <= MAX_FIELDS:
                continue
            bare = [_name(one.target) for one in entries if not _documented(node, one, lines)]
            if bare:
                found.append(
                    Violation(
                        f"{name}:{node.lineno}", f"{node.name}: not documented: {', '.join(bare)}"
                    )
                )
    return found


def _is_dataclass(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    return _name(called).endswith("dataclass")


def _name(node: ast.expr) -> str:
    return (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )


def _documented(owner: ast.ClassDef, entry: ast.AnnAssign, lines: list[str]) -> bool:
    """Whether a comment stands on the field's line or above it, or a string below it."""
    at = owner.body.index(entry)
    following = owner.body[at + 1] if at + 1 < len(owner.body) else None
    if (
        isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
        and isinstance(following.value.value, str)
    ):
        return True
    last = (entry.end_lineno or entry.lineno) - 1
    return "#" in lines[last][entry.end_col_offset :] or lines[
        entry.lineno - 2
    ].lstrip().startswith("#")


def words(source: Path) -> list[Violation]:
    """Words of the private vocabulary, and pronouns for persons."""
    banned = re.compile(rf"(?<![a-z])({'|'.join(BANNED)})(?![a-z])", re.I)
    found = []
    for name, path in modules(source).items():
        if name.rpartition(".")[2] in BANNED_NAMES:
            found.append(Violation(name, "a banned name for a module"))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for spelling in STORED:
                line = line.replace(spelling, "")
            for match in (*PRONOUNS.finditer(line), *banned.finditer(line)):
                found.append(
                    Violation(f"{name}:{number}", f"{match.group(0)!r} in {line.strip()[:90]!r}")
                )
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef) and node.name in BANNED_NAMES:
                found.append(
                    Violation(f"{name}:{node.lineno}", f"{node.name} is a banned name for a class")
                )
    return found


def assignments(source: Path) -> list[Violation]:
    """Attributes of another object that are assigned outside its class, in `train`."""
    found = []
    for name, path in modules(source).items():
        if not name.startswith("train"):
            continue
        for node in ast.walk(parse(path)):
            targets: Iterable[ast.expr] = ()
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = (node.target,)
            for target in targets:
                for one in ast.walk(target):
                    if (
                        isinstance(one, ast.Attribute)
                        and isinstance(one.ctx, ast.Store)
                        and _name(one.value) not in ("self", "cls")
                        and not any(fnmatchcase(ast.unparse(one), kind) for kind in FOREIGN)
                    ):
                        found.append(
                            Violation(f"{name}:{one.lineno}", f"assigns {ast.unparse(one)}")
                        )
    return found


def format_skips(*trees: Path) -> list[Violation]:
    """Every `fmt: skip` of several trees beyond the first MAX_FORMAT_SKIPS."""
    marks = [
        f"{path}:{number}"
        for tree in trees
        for path in sorted(tree.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.rstrip().endswith(("# fmt: skip", "# fmt: off"))
    ]
    return [
        Violation(mark, f"one more `fmt: skip` than the {MAX_FORMAT_SKIPS} allowed")
        for mark in marks[MAX_FORMAT_SKIPS:]
    ]


RULES: dict[str, Callable[..., list[Violation]]] = {
    "names": class_names,
    "circles": circles,
    "pairs": pairs,
    "sizes": sizes,
    "fields": fields,
    "words": words,
    "assign": assignments,
    "skips": format_skips,
}


def main() -> int:
    """Print the violations of the rules that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", nargs="*", default=[])
    parser.add_argument(
        "--room", default="", help="only what is below this folder, such as train/step"
    )
    parser.add_argument("--root", type=Path, default=ROOT)
    given = parser.parse_args()
    rooms = [one for one in given.rules if one not in RULES]
    chosen = [one for one in given.rules if one in RULES] or list(RULES)
    room = (given.room or (rooms[0] if rooms else "")).replace("/", ".").rstrip(".")
    total = 0
    for rule in chosen:
        trees = [given.root / "src" / "phalanx"]
        if rule == "skips":
            trees.append(given.root / "tests")
        found = RULES[rule](*trees)
        found = [one for one in found if one.where.startswith(room) or room in one.what]
        total += len(found)
        print(f"== {rule}: {len(found)}")
        for one in found:
            print(f"  {one}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
