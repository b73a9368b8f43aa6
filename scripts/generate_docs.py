"""Writes the generated reference pages: `make docs`. With --check: says which are out of date.

docs/reference/cli.md                  from the command line itself
docs/reference/spec.md                 from the model of the job spec
docs/reference/job-spec.schema.json    its JSON schema
docs/reference/study-spec.md           from the model of the study spec, with study-spec.schema.json
docs/reference/pool-file.md            from the models of the pool file and the project file,
docs/reference/project-file.md         with pool-file.schema.json and project-file.schema.json
docs/reference/foreign-jobs.md         from the tables of keys of other tools' job files
docs/reference/states.md               from the transition table
docs/reference/errors.md               from the exception tree and the exit codes
docs/reference/settings.md             from the model of the control plane's settings
docs/reference/python-library.md       from the signatures and docstrings of `phalanx.train`
docs/reference/sdk.md                  from those of `phalanx.sdk`
docs/reference/rest.md                 from the OpenAPI document of the control plane
docs/reference/rest-contract.txt       what clients of the API rely on, from the same document
docs/reference/roles.md                from the declarations of the routes
docs/reference/grpc.md                 from the methods of the gRPC API and its jobs.proto
docs/reference/metrics.md              its tables, from the catalogue of metrics
docs/reference/dashboards.md           from the dashboards of `phalanx.monitoring`
docs/reference/environment.md          its table of a rank's variables, from `core/contract`
docs/how-to/alerts.md                  its table, from the table of alerts
docs/how-to/objectives.md              its table, from the table of indicators
docs/runbooks/*.md                     the condition of each alert, the failure modes
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import api_contract
import api_reference
import typer.main
from fastapi import FastAPI
from pydantic import BaseModel

from phalanx import errors
from phalanx.cli.app import app
from phalanx.cli.exits import MEANINGS
from phalanx.core.alerts.table import ALERTS, Alert
from phalanx.core.contract.reporting import VARIABLES
from phalanx.core.jobs import events
from phalanx.core.jobs.budgets import DEFAULT_BUDGETS
from phalanx.core.jobs.machine import TRANSITIONS, Ignore, Refuse
from phalanx.core.jobs.model import HOLDING, TERMINAL, JobState, StopGoal
from phalanx.core.reasons import Cause, ReasonCode
from phalanx.core.search.model import TrialStatus
from phalanx.core.tenancy.roles import OF_ALL, PERMISSIONS, Permission, UserRole
from phalanx.kit.units import format_duration
from phalanx.schemas.foreign.formats import TABLES
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.pools.pool_file import PoolFile
from phalanx.schemas.pools.project_file import ProjectFile
from phalanx.schemas.pools.ray_pools import RayPool
from phalanx.schemas.rpc import methods
from phalanx.schemas.rpc.methods import METHODS, SERVICE, STATUSES, message_name
from phalanx.schemas.spec.document import json_schema, validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.study import StudySpec
from phalanx.schemas.spec.support import check_supported
from phalanx.server.access import Of
from phalanx.server.openapi import add_routes
from phalanx.server.settings import Settings

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
MARK = (
    "<!-- Written by scripts/generate_docs.py (`make docs`); change the source, not this page. -->"
)


def page(title: str, intro: str, *parts: str) -> str:
    return "\n".join([f"# {title}", "", MARK, "", intro, "", *parts]).rstrip() + "\n"


def table(headings: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str]) -> str:
        return (
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
        )

    return "\n".join([line(headings), line(["---"] * len(headings)), *map(line, rows), ""])


# -- the command line ----------------------------------------------------------------------------


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb and its command, in the order of the help."""
    root = typer.main.get_command(app)
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            for inner, leaf in command.commands.items():
                yield f"{name} {inner}", leaf
        else:
            yield name, command


def parameters(command: Any) -> str:
    rows = []
    for one in command.params:
        if one.name == "help":
            continue
        if one.param_type_name == "argument":
            # Typer writes optional arguments in brackets; here they are shown as they are typed.
            rows.append([f"`{one.metavar or one.name.upper()}`", one.help or ""])
            continue
        names = ", ".join(f"`{word}`" for word in [*one.opts, *one.secondary_opts])
        default = one.default
        shown = f" Default: {default}." if default not in (None, False, "", [], ()) else ""
        envvar = f" Environment: `{one.envvar}`." if getattr(one, "envvar", None) else ""
        rows.append([names, (one.help or "") + shown + envvar])
    return table(["argument or option", "meaning"], rows) if rows else ""


def cli_page() -> str:
    root = typer.main.get_command(app)
    parts = [
        "## Global options",
        "",
        "They may stand before or after the verb.",
        "",
        parameters(root),
    ]
    for name, command in verbs():
        help_text = " ".join((command.help or "").split())
        parts += [f"## phalanx {name}", "", help_text, "", parameters(command)]
    codes = [[f"`{code}`", meaning] for code, meaning in MEANINGS.items()]
    parts += ["## Exit codes", "", table(["code", "meaning"], codes)]
    intro = (
        "Every verb of `phalanx`. Listings take `--json`. Where no control plane runs for the home, "
        "a verb starts one in the background, which exits after a minute without work."
    )
    return page("Command line", intro, *parts)


# -- the job spec --------------------------------------------------------------------------------

_SAMPLES: dict[str, Any] = {
    "class": "x",
    "framework": "jax",
    "env_compat": ["slurm"],
    "resources": {
        "nodes": "2+",
        "cpus": "4+",
        "memory": "1GB..2GB",
        "shm": "1GB..2GB",
        "accelerator_memory": "1GB..2GB",
    },
    "checkpoint": {"every": "auto", "store": "s3://x/y"},
    "stall": {},
    "secrets": ["X"],
    "data": {"a": "b"},
    "budget": {"usd": 1},
    "depends_on": [1],
    "array": "0-1",
    "schedule": {"cron": "0 0 * * *"},
}


def refused() -> dict[str, str]:
    problems = check_supported(validate_spec({"run": "x", **_SAMPLES}))
    return {one.path: one.message.removeprefix("not yet supported: ") for one in problems}


def _rows(model: type[BaseModel], under: str, notes: dict[str, str]) -> Iterator[list[str]]:
    for name, field in model.model_fields.items():
        path = f"{under}{field.alias or name}"
        section = _section(field.annotation)
        default = field.get_default(call_default_factory=True)
        shown = "" if section or field.is_required() else _default(model, name, default)
        note = f" *Not built yet: {notes[path]}.*" if path in notes else ""
        yield [f"`{path}`", shown, (field.description or "") + note]
        if section is not None and path != "roles.NAME.training":
            mark = "" if field.annotation is section or _optional(field.annotation) else "."
            inner = f"{path}." if mark == "" or path == "warm" else f"{path}[]."
            inner = f"{path}.NAME." if path in ("roles", "space") else inner
            inner = f"{path}.UNIT." if path == "rungs.resources" else inner
            if path.startswith("recovery.") and path != "recovery.rank_crash":
                continue
            yield from _rows(section, inner, notes)


def _optional(annotation: Any) -> bool:
    import types
    import typing

    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _section(annotation: Any) -> type[BaseModel] | None:
    import typing

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_section(arg) for arg in typing.get_args(annotation))
    return next((one for one in found if one is not None), None)


def _default(model: type[BaseModel], name: str, default: Any) -> str:
    if default is None:
        return "none"
    if default in ([], {}):
        return "empty"
    probe = model.model_construct(**{name: default}).model_dump(mode="json", include={name})
    value = next(iter(probe.values()))
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"


def spec_page() -> str:
    notes = refused()
    rows = list(_rows(JobSpec, "", notes))
    budgets = []
    for cause, budget in DEFAULT_BUDGETS.items():
        count = "unlimited" if budget.count is None else str(budget.count)
        per = "since the last progress" if budget.per_s is None else format_duration(budget.per_s)
        if budget.killed is not None:
            count += f"; {budget.killed} after a rank was killed"
        budgets.append([f"`{cause.value}`", count, per, format_duration(budget.first_wait_s)])
    intro = (
        "The file that `phalanx submit` reads, version 1. Only `run` is required. Durations and sizes "
        "are written as people write them (`90s`, `1h30m`, `512MB`, `64GiB`). Unknown keys are errors. "
        "`phalanx submit --dry-run FILE` prints a spec with every default. Fields that are marked as "
        "not built yet are checked, and refused when they are used. The JSON schema is "
        "[job-spec.schema.json](job-spec.schema.json)."
    )
    defaults = [
        "## Default restart budgets",
        "",
        "A budget is refilled whenever the job gets beyond all earlier steps. `recovery.oom: 2`, "
        "`recovery.oom: {count: 2}` and `recovery.oom: unlimited` all work.",
        "",
        table(["cause", "restarts", "counted within", "first wait"], budgets),
    ]
    return page("Job spec", intro, table(["field", "default", "meaning"], rows), *defaults)


def foreign_page() -> str:
    intro = (
        "What `phalanx submit` makes of each key of job files of other tools. *mapped*: becomes the named "
        "key of the [job spec](spec.md). *dropped*: has no effect, with a warning. *refused*: one message "
        "with the line, and no job. A key that is in no table is refused. `*` stands for any name or entry "
        "of a list; a row holds for all keys below it that have no row. Keys marked *local* are left out "
        "by `--local`. [How to submit such files](../how-to/foreign-jobs.md)."
    )
    parts = []
    for tool, keys in TABLES:
        rows = [
            [f"`{rule.path}`", rule.action.value, rule.text, "local" if rule.of_image else ""]
            for rule in keys.rules
        ]
        parts += [f"## {tool}", "", table(["key", "", "becomes, or why not", ""], rows)]
    return page("Job files of other tools", intro, *parts)


def study_page() -> str:
    intro = (
        "The file that `phalanx sweep` reads, version 1: a hyperparameter search. Required are "
        "`objective.metric` and `space`; `trials.max` is, too, but for a grid or with a budget. "
        "Unknown keys are errors. `phalanx sweep FILE --dry-run` shows what a study would do. The JSON "
        "schema is [study-spec.schema.json](study-spec.schema.json); "
        "[how to use it](../how-to/sweep.md)."
    )
    rows = list(_rows(StudySpec, "", {}))
    states = [[f"`{one}`", _STATUSES[one]] for one in TrialStatus]
    return page(
        "Study spec",
        intro,
        table(["field", "default", "meaning"], rows),
        "## Statuses of trials",
        "",
        "`phalanx sweep trials` shows the reason beside the status.",
        "",
        table(["status", "meaning"], states),
    )


_STATUSES = {
    TrialStatus.ASKED: "a sampler is asked for its params",
    TrialStatus.SUGGESTED: "it has params, and waits for a place or an evaluator",
    TrialStatus.WAITING: "its job is in the queue",
    TrialStatus.RUNNING: "its ranks run, or an evaluator outside has it",
    TrialStatus.HELD: "it has reached its rung, and keeps its slots for a moment",
    TrialStatus.PAUSED: "it has saved and left its slots; it may be promoted",
    TrialStatus.COMPLETED: "it was trained to its end",
    TrialStatus.STOPPED: "a rule, a budget, a user or the end of the study ended it",
    TrialStatus.DIVERGED: "it reported a value that is not finite (`not_finite`); it is never the best, "
    "and samplers learn that its params are bad",
    TrialStatus.FAILED: "its job failed (`job_failed`), or ended well without ever reporting the objective "
    "(`no_metric`); counts against `trials.failed`",
    TrialStatus.REJECTED: "its script called its params invalid; does not count",
}


# -- pools and projects --------------------------------------------------------------------------


def pool_page() -> str:
    intro = (
        "The file that `phalanx pools apply -f FILE` and `phalanx up --pool FILE` read, version 1. "
        "`executor` is the kind of a pool. Traits of a `local` pool apply to each of its nodes that does "
        "not override them; absent `cpus` and `memory` are the machine's. "
        "Nodes with other slots, slot types, prices, taints or selected labels count as other kinds, "
        "and a gang keeps to one kind where it can. The JSON schema is "
        "[pool-file.schema.json](pool-file.schema.json); "
        "[how to use it](../how-to/pools-and-projects.md)."
    )
    heads = ["field", "default", "meaning"]
    rows = list(_rows(PoolFile, "", {}))
    cluster = list(_rows(RayPool, "pools[].", {}))
    how = "[How to use it](../how-to/ray.md)."
    more = f"## A Ray cluster\n\nWith `executor: ray`; the cluster reports its nodes. {how}\n"
    kubernetes = list(_rows(KubernetesPool, "pools[].", {}))
    how = "[How to use it](../how-to/kubernetes.md)."
    pods = f"## A Kubernetes cluster\n\nWith `executor: kubernetes`; jobs run as its pods. {how}\n"
    parts = [more, table(heads, cluster), pods, table(heads, kubernetes)]
    return page("Pool file", intro, table(heads, rows), *parts)


def project_page() -> str:
    intro = (
        "The file that `phalanx projects apply -f FILE` reads, version 1. The JSON schema is "
        "[project-file.schema.json](project-file.schema.json); "
        "[how to use it](../how-to/pools-and-projects.md)."
    )
    rows = list(_rows(ProjectFile, "", {}))
    return page("Project file", intro, table(["field", "default", "meaning"], rows))


# -- states --------------------------------------------------------------------------------------


def _verdict(state: JobState, kind: type) -> str:
    cell = TRANSITIONS[state, kind]
    if isinstance(cell, Refuse):
        return ""
    return "ignored" if isinstance(cell, Ignore) else "handled"


def states_page() -> str:
    matrix = [
        [f"`{kind.__name__}`", *(_verdict(state, kind) for state in JobState)]
        for kind in events.EVENT_TYPES
    ]
    meanings = [
        [f"`{kind.__name__}`", (kind.__doc__ or "").strip().splitlines()[0]]
        for kind in events.EVENT_TYPES
    ]
    kinds = [
        [
            f"`{state.value}`",
            "yes" if state in HOLDING else "",
            "yes" if state in TERMINAL else "",
        ]
        for state in JobState
    ]
    goals = ", ".join(f"`{goal.value}`" for goal in StopGoal)
    causes = ", ".join(f"`{cause.value}`" for cause in Cause)
    reasons = ", ".join(f"`{code.value}`" for code in ReasonCode)
    return page(
        "States, events, reasons",
        "The life of a job as one table; [job life](../explanation/job-life.md) is an overview.",
        table(["state", "holds slots", "final"], kinds),
        f"A stopping job has a goal: {goals}; a later one in this list overrides an earlier one.\n",
        "## Events",
        "",
        table(["event", "meaning"], meanings),
        "## Transition table",
        "",
        "*handled*: may change the job. *ignored*: late or repeated, harmless. Empty: refused as a bug.",
        "",
        table(["event", *(state.value for state in JobState)], matrix),
        "## Causes and reasons",
        "",
        f"Causes, the keys of restart budgets: {causes}.\n",
        f"Reasons, which every state change carries: {reasons}.",
    )


# -- errors --------------------------------------------------------------------------------------


def _tree(kind: type[errors.PlatformError], depth: int = 0) -> Iterator[list[str]]:
    said = (kind.__doc__ or "").strip().splitlines()[0]
    again = "yes" if kind.retryable else ""
    name = "&nbsp;" * 4 * depth + f"`{kind.__name__}`"
    yield [name, f"`{kind.code}`", str(kind.http_status), str(kind.exit_code), again, said]
    for child in kind.__subclasses__():
        yield from _tree(child, depth + 1)


def errors_page() -> str:
    codes = [[f"`{code}`", meaning] for code, meaning in MEANINGS.items()]
    headings = ["error", "code", "HTTP", "exit", "try again", "meaning"]
    return page(
        "Errors and exit codes",
        "Exit codes of `phalanx` and errors of its API. The body of an error is "
        "`{code, message, hint, retryable, problems}`.",
        "## Exit codes of `phalanx`",
        "",
        table(["code", "meaning"], codes),
        "## Errors",
        "",
        table(headings, list(_tree(errors.PlatformError))),
    )


# -- settings ------------------------------------------------------------------------------------


def _settings(model: type[BaseModel], under: str) -> Iterator[list[str]]:
    for name, field in model.model_fields.items():
        variable, default = f"{under}{name.upper()}", field.get_default()
        if isinstance(default, BaseModel):
            yield from _settings(type(default), f"{variable}__")
            continue
        shown = {None: "", float: f"{default:g}" if isinstance(default, float) else ""}.get(
            default if default is None else type(default), json.dumps(default)
        )
        yield [f"`{variable}`", shown and f"`{shown}`", field.description or ""]


def settings_page() -> str:
    return page(
        "Settings of the control plane",
        "Environment variables `PHALANX__SECTION__KEY` of the process that `phalanx up`, or the first "
        "verb, starts. Names ending in `_S` are seconds; lists are JSON. A variable that is none of "
        "these, or has an invalid value, prevents the start and is named.",
        table(["variable", "default", "meaning"], list(_settings(Settings, "PHALANX__"))),
    )


# -- Python, REST, metrics, environment ----------------------------------------------------------


def library_page() -> str:
    intro = (
        "The public interface of `phalanx.train`. Options are keywords of `init`; the spec's section "
        "`training` overrides them. How-to pages show each option in use."
    )
    return page("Python library", intro, *api_reference.library_page(table))


def sdk_page() -> str:
    intro = (
        "`phalanx.sdk.PhalanxClient` calls the [REST API](rest.md), which describes the bodies; errors are "
        "those of [errors and exit codes](errors.md)."
    )
    return page("Python SDK", intro, *api_reference.sdk_page())


def rest_page() -> str:
    app = FastAPI(
        title="Phalanx", separate_input_output_schemas=False, docs_url=None, redoc_url=None
    )
    add_routes(app)
    document = app.openapi()
    document["paths"] = {
        path: methods for path, methods in document["paths"].items() if "/supervisors/" not in path
    }
    intro = (
        "Every route of the control plane. Requests carry `Authorization: Bearer TOKEN` with a "
        "[token](../how-to/tokens.md) that has the route's scope, `/healthz` excepted; without a token the "
        "answer is 401, without the scope 403. Times are RFC 3339, durations seconds, sizes bytes. "
        "Unknown keys of a request are errors; clients ignore unknown keys of a response. The running "
        "server publishes this document at "
        "`/openapi.json`. Errors have the body [ErrorView](errors.md)."
    )
    return page("REST API", intro, *api_reference.rest_page(document, table))


def contract_page() -> str:
    """The kept contract with what was added; unchanged where a change breaks clients."""
    document = FastAPI(separate_input_output_schemas=False, docs_url=None, redoc_url=None)
    add_routes(document)
    path = REFERENCE / "rest-contract.txt"
    before = set(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else set()
    kept = api_contract.recorded(before, api_contract.contract_of(document.openapi()))
    return "\n".join(sorted(kept)) + "\n"


def roles_page() -> str:
    """The table of routes and roles, from the declarations of the routes."""
    document = FastAPI(title="Phalanx", docs_url=None, redoc_url=None)
    rows = []
    for (method, path), access in sorted(
        add_routes(document).of_route.items(), key=lambda one: (one[0][1], one[0][0])
    ):
        if not access.needs_caller:
            continue
        may = ["yes" if _has(role, access.permission) else "" for role in UserRole]
        rows.append(
            [f"`{method} {path}`", f"`{access.permission}`", PLACES[access.of]]
            + (["yes"] * len(UserRole) if access.permission in OF_ALL else may)
        )
    intro = (
        "What each [role](../how-to/users-and-roles.md) may do. The role counts in the project of the "
        "column `in`; a role for the whole platform counts in every one. The owner of a job or study may "
        "do what needs `jobs.change` to it as a member. A token also needs the scope that "
        "[the REST API](rest.md) names. Routes without a caller are left out."
    )
    heads = ["route", "permission", "in", *(str(role) for role in UserRole)]
    return page("Routes and roles", intro, table(heads, rows))


PLACES = {
    Of.WHOLE: "the whole platform",
    Of.ANY: "any project; the rest is left out",
    Of.BODY: "the project of the body",
    Of.JOB: "the project of the job",
    Of.STUDY: "the project of the study",
    Of.PROJECT: "the project",
}


def _has(role: UserRole, permission: Permission) -> bool:
    return permission in PERMISSIONS[role]


def grpc_page() -> str:
    """The methods of the gRPC API with what they need, its statuses and its messages."""
    of_route = add_routes(FastAPI(title="Phalanx", docs_url=None, redoc_url=None)).of_route
    rows = []
    for one in METHODS:
        access = of_route[one.verb, one.route]
        needs = f"`{access.permission}`" if access.needs_caller else "the token of the rank"
        takes = ("stream " if one.streams_requests else "") + message_name(one.request)
        gives = ("stream " if one.streams_responses else "") + message_name(one.response)
        rows.append([f"`{one.name}`", one.about, takes, gives, needs, f"`{one.verb} {one.route}`"])
    heads = ["method", "meaning", "request", "response", "permission", "route"]
    statuses = [[str(number), f"`{name}`"] for number, name in STATUSES.items()]
    package = Path(methods.__file__).with_name("jobs.proto")
    return page(
        "gRPC API",
        f"The service `{SERVICE}` of [the gRPC API](../how-to/grpc.md). Each method is a route of "
        "[the REST API](rest.md), with its permission ([roles](roles.md)), limits and errors.",
        "## Methods",
        "",
        table(heads, rows),
        "## Statuses",
        "",
        table(["status of HTTP", "status of gRPC"], statuses),
        "## jobs.proto",
        "",
        f"```proto\n{package.read_text()}```",
    )


def metrics_page() -> str:
    tables = {
        "catalogue": api_reference.metric_tables(table),
        "aliases": table(["name", "meaning", "query"], api_reference.alias_rows()),
    }
    return api_reference.with_tables(REFERENCE / "metrics.md", tables)


def dashboards_page() -> str:
    intro = (
        "Every panel of the dashboards that `phalanx dashboards export` writes. How to use them: "
        "[Monitor with Grafana](../how-to/monitor-with-grafana.md)."
    )
    return page("Dashboards", intro, *api_reference.dashboards_page(table))


def alerts_page() -> str:
    heads = ["alert", "severity", "mode", "for", "meaning"]
    return api_reference.with_tables(
        REFERENCE.parent / "how-to" / "alerts.md",
        {"alerts": table(heads, api_reference.alert_rows())},
    )


def objectives_page() -> str:
    heads = ["indicator", "meaning", "target", "series", "note"]
    return api_reference.with_tables(
        REFERENCE.parent / "how-to" / "objectives.md",
        {"indicators": table(heads, api_reference.indicator_rows())},
    )


def runbook_index() -> str:
    return api_reference.with_tables(
        REFERENCE.parent / "runbooks" / "index.md",
        {"modes": table(["mode", "meaning", "alerts"], api_reference.mode_rows())},
    )


def runbook_page(one: Alert) -> str:
    page = REFERENCE.parent / "runbooks" / f"{one.name}.md"
    return api_reference.with_tables(page, {"alert": api_reference.alert_text(one)})


def environment_page() -> str:
    rows = api_reference.contract_variables()
    heads = ["variable", "meaning"]
    sent = [[f"`{name}`", meaning] for name, meaning in VARIABLES.items()]
    tables = {"contract": table(heads, rows), "reporting": table(heads, sent)} if rows else {}
    return api_reference.with_tables(REFERENCE / "environment.md", tables)


def as_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "spec.md": spec_page,
    "job-spec.schema.json": lambda: as_text(json_schema()),
    "study-spec.md": study_page,
    "study-spec.schema.json": lambda: as_text(json_schema(StudySpec)),
    "pool-file.md": pool_page,
    "pool-file.schema.json": lambda: as_text(json_schema(PoolFile)),
    "project-file.md": project_page,
    "project-file.schema.json": lambda: as_text(json_schema(ProjectFile)),
    "foreign-jobs.md": foreign_page,
    "states.md": states_page,
    "errors.md": errors_page,
    "settings.md": settings_page,
    "python-library.md": library_page,
    "sdk.md": sdk_page,
    "rest.md": rest_page,
    "rest-contract.txt": contract_page,
    "roles.md": roles_page,
    "grpc.md": grpc_page,
    "metrics.md": metrics_page,
    "dashboards.md": dashboards_page,
    "environment.md": environment_page,
    "../how-to/alerts.md": alerts_page,
    "../how-to/objectives.md": objectives_page,
    "../runbooks/index.md": runbook_index,
    **{f"../runbooks/{one.name}.md": partial(runbook_page, one) for one in ALERTS},
}


def stale(folder: Path = REFERENCE) -> list[str]:
    """The pages that are not what they would be if written now."""
    found = []
    for name, write in PAGES.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != write():
            found.append(name)
    return found


def main() -> int:
    if "--check" in sys.argv[1:]:
        old = stale()
        print("\n".join(f"docs/reference/{name} is out of date: make docs" for name in old))
        return 1 if old else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        (REFERENCE / name).write_text(write(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
