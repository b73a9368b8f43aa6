"""Reference pages of the Python library, the SDK, the REST API, metrics and environment variables.

The sources are read with `ast`, so that no page needs torch. `generate_docs.py` writes the pages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dashboards import shipped

from phalanx.core.alerts.conditions import promql
from phalanx.core.alerts.table import ALERTS, MODE_MEANINGS, Alert
from phalanx.core.metrics.aliases import ALIASES
from phalanx.core.metrics.catalogue import GROUPS
from phalanx.core.metrics.family import Family, MetricOrigin
from phalanx.core.slo.burn import span
from phalanx.core.slo.indicators import INDICATORS

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "phalanx"
SECTIONS = ("Args", "Returns", "Raises", "Yields", "Attributes")
_ENTRY = re.compile(r"^(\*{0,2}\w+)(?:\s*\(([^)]*)\))?:\s*(.*)$")
# Bodies that a reference page of their own describes.
_FILES = {"JobSpec": "spec.md", "PoolFile": "pool-file.md", "ProjectFile": "project-file.md"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Table = Callable[[list[str], list[list[str]]], str]


# -- docstrings ----------------------------------------------------------------------------------


def sections(doc: str) -> tuple[str, dict[str, list[tuple[str, str]]]]:
    """The text of a docstring, and the entries of its sections such as `Args`."""
    text: list[str] = []
    found: dict[str, list[tuple[str, str]]] = {}
    here: str | None = None
    for line in doc.splitlines():
        title = line.strip().removesuffix(":")
        if line == line.lstrip() and line.endswith(":") and title in SECTIONS:
            here = title
            found[here] = []
        elif here is None:
            text.append(line)
        elif line.startswith("    ") and not line.startswith("     "):
            match = _ENTRY.match(line.strip())
            found[here].append((match[1], match[3]) if match else ("", line.strip()))
        elif line.startswith("     ") and found[here]:
            name, said = found[here][-1]
            found[here][-1] = (name, f"{said} {line.strip()}".strip())
        elif line.strip():
            here = None
            text.append(line)
    return "\n".join(text).strip(), found


def signature(node: Function) -> str:
    """The call as a reader writes it: without `self`, with defaults, one parameter a line if long."""
    args = node.args
    shown: list[str] = []
    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults)) + list(
        args.defaults
    )
    for one, default in zip(plain, defaults, strict=True):
        if one.arg not in ("self", "cls"):
            shown.append(_parameter(one, default))
    if args.vararg:
        shown.append(f"*{_parameter(args.vararg, None)}")
    elif args.kwonlyargs:
        shown.append("*")
    shown += [
        _parameter(one, default)
        for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg:
        shown.append(f"**{_parameter(args.kwarg, None)}")
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    flat = f"{node.name}({', '.join(shown)}){result}"
    if len(flat) <= 96:
        return flat
    inner = "".join(f"    {one},\n" for one in shown)
    return f"{node.name}(\n{inner}){result}"


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(one.annotation)}" if one.annotation is not None else ""
    value = "" if default is None else f" = {ast.unparse(default)}"
    return one.arg + kind + value


def _is_property(node: Function) -> bool:
    return any("property" in ast.unparse(one) for one in node.decorator_list)


def _public(body: Sequence[ast.stmt]) -> Iterator[Function]:
    for node in body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node


def _entry(node: Function, level: str) -> list[str]:
    text, found = sections(ast.get_docstring(node) or "")
    if _is_property(node):
        kind = ast.unparse(node.returns) if node.returns is not None else ""
        parts = [f"{level} {node.name}", "", f"`{kind}`. {text}", ""]
    else:
        parts = [f"{level} {node.name}", "", "```python", signature(node), "```", "", text, ""]
    for title, entries in found.items():
        parts += [f"{title}:", ""]
        parts += [f"* `{name}`: {said}" if name else f"* {said}" for name, said in entries] + [""]
    return parts


def _parsed(module: str) -> ast.Module:
    path = SOURCE / f"{module}.py"
    path = path if path.is_file() else SOURCE / module / "__init__.py"
    return ast.parse(path.read_text())


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(one) for one in ast.literal_eval(node.value)]
    return []


# -- the training library ------------------------------------------------------------------------


def options(node: Function) -> list[list[str]]:
    """Every option of `init`: name, default, type and meaning."""
    described = dict(sections(ast.get_docstring(node) or "")[1].get("Args", ()))
    rows = []
    for one, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        kind = ast.unparse(one.annotation) if one.annotation is not None else ""
        value = "" if default is None else ast.unparse(default)
        rows.append([f"`{one.arg}`", f"`{value}`", f"`{kind}`", described.get(one.arg, "")])
    return rows


def library_page(table: Table) -> list[str]:
    """`phalanx.train`: `init` with its options, `Run`, and the public modules."""
    init = next(one for one in _public(_parsed("train").body) if one.name == "init")
    text, found = sections(ast.get_docstring(init) or "")
    parts = ["## phalanx.train.init", "", text, ""]
    parts += [table(["option", "default", "type", "meaning"], options(init))]
    for said in (entry for entry in found.get("Raises", ())):
        parts += [f"* Raises `{said[0]}`: {said[1]}"]
    parts += ["", "## Run", ""]
    run = next(
        node
        for node in _parsed("train/run").body
        if isinstance(node, ast.ClassDef) and node.name == "Run"
    )
    parts += [sections(ast.get_docstring(run) or "")[0], ""]
    trial = next(
        node for node in _parsed("train/trial/methods").body if isinstance(node, ast.ClassDef)
    )
    for node in _public([*run.body, *trial.body]):
        parts += _entry(node, "###")
    for module in ("batch_size", "federated", "folders", "jax", "readers"):
        tree = _parsed(f"train/{module}")
        parts += [f"## phalanx.train.{module}", "", (ast.get_docstring(tree) or "").strip(), ""]
        for name in _exported(tree):
            node = _definition(tree, name)
            if isinstance(node, Function):
                parts += _entry(node, "###")
            elif node is not None:
                about = sections(ast.get_docstring(node) or "")[0]
                parts += [f"### {name}", "", *_constructor(node), about, ""]
                for inner in _public(node.body):
                    parts += _entry(inner, "####")
    return parts


def _constructor(node: ast.ClassDef) -> list[str]:
    """How an instance is made; empty where the class has no `__init__` of its own."""
    for one in node.body:
        if isinstance(one, Function) and one.name == "__init__":
            call = signature(one).replace("__init__", node.name, 1).removesuffix(" -> None")
            return ["```python", call, "```", ""]
    return []


def _definition(tree: ast.Module, name: str) -> Function | ast.ClassDef | None:
    """A function or class, here or in the module that it is imported from, also for types only."""
    inner = [node for one in tree.body if isinstance(one, ast.If) for node in one.body]
    for node in [*tree.body, *inner]:
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("phalanx."):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    module = node.module.removeprefix("phalanx.").replace(".", "/")
                    return _definition(_parsed(module), alias.name)
    return None


# -- the SDK -------------------------------------------------------------------------------------


def sdk_page() -> list[str]:
    """`PhalanxClient`: its constructor and one method for each route, by subject."""
    parts: list[str] = []
    for module, name, title in (
        ("sdk/client", "PhalanxClient", "The client, the server, pools, nodes and projects"),
        ("sdk/transport", "Transport", "The connection"),
        ("sdk/jobs", "JobCalls", "Jobs"),
        ("sdk/studies", "StudyCalls", "Studies"),
        ("sdk/studies", "StudyHandle", "Trials evaluated outside"),
    ):
        node = _definition(_parsed(module), name)
        assert isinstance(node, ast.ClassDef)
        text, found = sections(ast.get_docstring(node) or "")
        parts += [f"## {title}", "", text, ""]
        parts += [f"* `{arg}`: {said}" for arg, said in found.get("Args", ())] + [""]
        for method in _public(node.body):
            parts += _entry(method, "###")
    return parts


# -- the REST API --------------------------------------------------------------------------------


def rest_page(document: dict[str, Any], table: Table) -> list[str]:
    """Every route of an OpenAPI document with its parameters, and every body."""
    parts = []
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            parts += [f"## {method.upper()} {path}", ""]
            parts += [
                " ".join((route.get("description") or route.get("summary") or "").split()),
                "",
            ]
            scopes = [name for one in route["security"] for name in one.get("token", ())]
            if scopes:
                parts += [f"Scope: `{scopes[0]}`.", ""]
            rows = [
                [
                    f"`{one['name']}`",
                    one["in"],
                    _kind(one["schema"]),
                    "yes" if one.get("required") else "",
                ]
                for one in route.get("parameters", ())
            ]
            if rows:
                parts += [table(["parameter", "in", "type", "required"], rows)]
            body = route.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                parts += [f"Request body: {_kind(body['schema'])}.", ""]
            for code, answer in route["responses"].items():
                content = answer.get("content", {}).get("application/json", {})
                if code.startswith("2") and content.get("schema"):
                    parts += [f"Response {code}: {_kind(content['schema'])}.", ""]
    parts += ["## Bodies", ""]
    schemas = document["components"]["schemas"]
    for name in sorted(_used(document["paths"], schemas)):
        schema = schemas[name]
        about = " ".join((schema.get("description") or "").split())
        rows = [
            [f"`{key}`", _kind(one), "" if key in schema.get("required", ()) else _shown(one)]
            for key, one in schema.get("properties", {}).items()
        ]
        parts += [f"### {name}", "", about, "", table(["field", "type", "default"], rows)]
    return parts


def _used(value: Any, schemas: dict[str, Any]) -> set[str]:
    """The names of the schemas that a part of the document refers to, those of files excepted."""
    found: set[str] = set()
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            left += one.values()
            name = str(one.get("$ref", "")).rpartition("/")[2]
            if name and name not in found and name not in _FILES:
                found.add(name)
                left.append(schemas[name])
    return found


def _shown(schema: dict[str, Any]) -> str:
    return f"`{schema['default']}`" if schema.get("default") is not None else "none"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in _FILES:
            return f"[{name}]({_FILES[name]})"
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "any")


# -- metrics -------------------------------------------------------------------------------------

_REPLICAS = {
    MetricOrigin.DATABASE: "the database",
    MetricOrigin.REPLICA: "the process",
    MetricOrigin.OPERATOR: "the operator",
}


def metric_tables(table: Table) -> str:
    """Every family of the catalogue under the heading of its group."""
    heads = ["name", "type", "unit", "meaning", "number of", "most series"]
    parts = []
    for title, group in GROUPS:
        parts += [f"### {title}", "", table(heads, [_metric(one) for one in group])]
    return "\n".join(parts)


def alias_rows() -> list[list[str]]:
    """Every recorded name with its meaning and the query behind it."""
    return [[f"`{one.name}`", one.help, f"`{one.query}`"] for one in ALIASES]


def alert_rows() -> list[list[str]]:
    """Every alert with what it asks for."""
    return [
        [
            f"[{one.name}](../runbooks/{one.name}.md)",
            one.severity.value,
            one.mode.value,
            span(one.hold_s) if one.hold_s else "at once",
            one.meaning,
        ]
        for one in ALERTS
    ]


def mode_rows() -> list[list[str]]:
    """Every failure mode with the alerts that are its signals, and the severity of each."""
    return [
        [
            mode.value,
            meaning,
            ", ".join(
                f"[{one.name}]({one.name}.md) ({one.severity.value})"
                for one in ALERTS
                if one.mode is mode
            ),
        ]
        for mode, meaning in MODE_MEANINGS.items()
    ]


def indicator_rows() -> list[list[str]]:
    """Every service-level indicator with its target and the series that records it."""
    return [[one.code, one.title, one.target, f"`{one.recorded}`", one.note] for one in INDICATORS]


def alert_text(one: Alert) -> str:
    """The condition of an alert for its runbook."""
    held = (
        f"It fires once this has held for {span(one.hold_s)}" if one.hold_s else "It fires at once"
    )
    kept = f", and for {span(one.keep_s)} after it is over" if one.keep_s else ""
    query = promql(one.condition)
    return f"{one.meaning}\n\n{held}{kept}:\n\n```promql\n{query}\n```"


def _metric(one: Family) -> list[str]:
    fixed = {label.name for label in one.labels if len(label.values) == 1}
    shown = ", ".join(
        f'{label.name}="{label.values[0]}"' if label.name in fixed else label.name
        for label in one.labels
    )
    name = f"`{one.exported}{{{shown}}}`" if shown else f"`{one.exported}`"
    meaning = f"{one.help.rstrip('.')}; only when {one.condition}" if one.condition else one.help
    return [name, one.kind.value, one.unit, meaning, _REPLICAS[one.origin], f"{one.most_series:,}"]


def dashboards_page(table: Table) -> list[str]:
    """Every panel of the shipped dashboards, with its advice and its queries."""
    parts: list[str] = []
    heads = ["panel", "meaning, and what to do", "unit", "queries"]
    texts = {one["title"]: one["description"] for one in shipped.boards()}
    for board, of_board in groupby(shipped.panels(), key=lambda one: one.board):
        title = board.removeprefix("Phalanx: ").capitalize()
        parts += [f"## {title}", "", texts[board], ""]
        for row, found in groupby(of_board, key=lambda one: one.row):
            rows = [
                [one.title, one.text, one.unit, " · ".join(f"`{query}`" for query in one.queries)]
                for one in found
            ]
            parts += [f"### {title}: {row[0].lower()}{row[1:]}", "", table(heads, rows)]
    return parts


# -- environment variables -----------------------------------------------------------------------


def contract_variables() -> list[list[str]]:
    """The variables that fields of `core/contract` are found in, with the comments there."""
    rows = []
    for name in ("gang", "checkpointing", "trial"):
        path = SOURCE / "core" / "contract" / f"{name}.py"
        if not path.is_file():
            continue
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Call):
                continue
            if ast.unparse(node.value.func) != "variable":
                continue
            variable = ast.literal_eval(node.value.args[0])
            rows.append([f"`{variable}`", _comment(lines, node.lineno, ast.unparse(node.target))])
    return rows


def _comment(lines: list[str], lineno: int, name: str) -> str:
    found: list[str] = []
    at = lineno - 2
    while at >= 0 and lines[at].strip().startswith("#:"):
        found.insert(0, lines[at].strip().removeprefix("#:").strip())
        at -= 1
    return " ".join(found) or name.replace("_", " ")


# -- tables inside written pages ----------------------------------------------------------------


def with_tables(page: Path, tables: dict[str, str]) -> str:
    """A written page with the tables between its markers `<!-- generated: NAME -->` made anew."""
    text = page.read_text(encoding="utf-8")
    for name, body in tables.items():
        begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
        head, _, rest = text.partition(begin)
        if not rest:
            raise SystemExit(f"{page}: there is no marker {begin}")
        text = f"{head}{begin}\n\n{body.strip()}\n\n{end}{rest.partition(end)[2]}"
    return text
