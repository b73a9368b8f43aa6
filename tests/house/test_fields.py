"""Nothing that is accepted is inert: every field that a user or a rank may set is read where it acts.

A field counts as read when some module loads an attribute of its name. Modules that only carry values on
(`CARRIERS`: schemas, views, the command line, the simulator) do not count for values of the core, so a
field that is parsed, stored and displayed, and used nowhere, is found. Fields of equal names hide one
another: the test finds most inert fields, not all.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import phalanx
from house.rules import parse
from phalanx.core.reasons import Cause
from phalanx.schemas.spec import support

SOURCE = Path(phalanx.__file__).parent

#: Packages and modules that carry or display values, and do not act on them.
CARRIERS = (
    "schemas",
    "cli",
    "sdk",
    "sim",
    "services.queries",
    "services.caches.planner_input",
    "services.lifecycle.assignments",
    "store",
    "server.routers",
    "testing",
)

#: Modules with models of what users write: each field must be read by some module.
WRITTEN = ("schemas.spec", "schemas.pools", "server.settings")

#: Values of the core and of ranks: each field must be read by a module that acts.
CARRIED = {
    "core.gang.placement": ("Node", "Demand", "GangShape", "RoleShape", "NodeShare", "Placement"),
    "core.scheduling.model.planning_input": ("QueuedJob", "RunningJob", "PlannerConfig"),
    "core.contract.job": ("JobContract", "RoleContract", "WarmStart", "PythonRequirements"),
    "core.contract.gang": ("GangContract", "RolePlace", "WorldShape"),
    "core.contract.checkpointing": ("CheckpointPolicy", "SaveInterval"),
    "core.jobs.model": ("JobPolicy",),
    "core.jobs.budgets": ("Budget",),
    "schemas.wire.assignments": ("Assignment", "PythonPackages"),
    "train.settings": ("RunOptions", "CompressionSettings", "SyncSettings", "OuterSettings"),
    "train.programs.recipes.settings": ("Recipe",),
}

#: Fields that are read in another way than as an attribute, and where.
_REFUSED = "refused by schemas/spec/support.py until it is built"
_VERSION = "only 1 is valid, which its type checks"
_CAUSE = "JobSpec.to_policy reads the budget of each cause by its name"
_NETWORK = "core/frameworks/rank_environment.py reads the section as a mapping"
_BOOT = (
    "supervise/boot.py and secret_values.py read the assignment as JSON, before models are loaded"
)
_PACKAGES = "supervise/packages reads the request as JSON, before models are loaded"
OTHERWISE: dict[str, str] = {
    "JobSpec.env_compat": _REFUSED,
    "JobSpec.description": "shown with the job, from its stored spec",
    **{
        f"{one}.schema_version": _VERSION
        for one in ("JobSpec", "JobTemplate", "PoolFile", "ProjectFile", "StudySpec")
    },
    "FinalSection.retrain": "services/studies/submit.py refuses a study with `final`",
    "SearchSection.init_points": "services/studies/submit.py reads it by its name, with the other options",
    **{f"Recovery.{cause.value}": _CAUSE for cause in Cause},
    "Network.debug": _NETWORK,
    "Training.network": _NETWORK,
    "Assignment.own_env": "executors/kubernetes/pod.py reads it by its name, before pydantic is loaded",
    "Assignment.own_secrets": _BOOT,
    "Assignment.own_secrets_file": _BOOT,
    "PythonPackages.wanted": _PACKAGES,
    **{
        f"PythonRequirements.{name}": _PACKAGES
        for name in ("packages", "installer", "index_url", "extra_index_urls", "find_links")
    },
}


@cache
def loaded(path: Path) -> frozenset[str]:
    """Names of attributes that one module loads."""
    return frozenset(
        node.attr
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def reads(source: Path, without: Iterable[str] = ()) -> set[str]:
    """Names of attributes that modules load; those of carriers do not count."""
    skipped = tuple(without)
    found: set[str] = set()
    for path in source.rglob("*.py"):
        name = module_name(path, source)
        if any(name == one or name.startswith(f"{one}.") for one in skipped):
            continue
        found |= loaded(path)
    return found


def inert(fields: Iterable[tuple[str, str]], known: set[str]) -> list[str]:
    """Those of (class, field) with a name that is read nowhere."""
    return sorted(
        f"{owner}.{name}"
        for owner, name in fields
        if name not in known and f"{owner}.{name}" not in OTHERWISE
    )


def written_models() -> Iterator[type[BaseModel]]:
    """The pydantic models of what users write."""
    for package in WRITTEN:
        root = importlib.import_module(f"phalanx.{package}")
        names = [root.__name__]
        if hasattr(root, "__path__"):
            names += [one.name for one in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")]
        for name in names:
            for _, one in inspect.getmembers(importlib.import_module(name), inspect.isclass):
                if issubclass(one, BaseModel) and one.__module__ == name:
                    yield one


def carried_fields() -> Iterator[tuple[str, str]]:
    for module, names in CARRIED.items():
        for name in names:
            one: Any = getattr(importlib.import_module(f"phalanx.{module}"), name)
            if dataclasses.is_dataclass(one):
                own = [field.name for field in dataclasses.fields(one)]
            else:
                own = list(one.model_fields)
            yield from ((name, field) for field in own)


def test_every_key_that_users_write_is_read():
    fields = [(one.__name__, name) for one in written_models() for name in one.model_fields]
    assert len(fields) > 150
    assert inert(fields, reads(SOURCE)) == []


def test_every_value_that_is_carried_acts_somewhere():
    carriers = [one for one in CARRIERS if one not in CARRIED]
    fields = list(carried_fields())
    assert len(fields) > 150
    assert inert(fields, reads(SOURCE, carriers)) == []


def test_exceptions_are_needed_and_have_a_reason():
    known = reads(SOURCE, CARRIERS)
    assert all(OTHERWISE.values())
    assert not [one for one in OTHERWISE if one.partition(".")[2] in known]


def test_fields_that_count_as_refused_are_refused():
    refused = {path.rpartition(".")[2] for path, *_ in support._NOT_YET}
    named = {"job_class": "class", "usd": "budget", "cron": "schedule"}
    for one, reason in OTHERWISE.items():
        if reason == _REFUSED:
            field = one.partition(".")[2]
            assert named.get(field, field) in refused, one


@pytest.mark.parametrize(
    ("user", "found"),
    [("", ["Box.lid"]), ("def f(box): box.lid = 3\n", ["Box.lid"]), ("def f(box): box.lid\n", [])],
)
def test_a_planted_field_is_found(tmp_path, user, found):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "shown.py").write_text("def view(box): return box.lid\n")
    (tmp_path / "acts.py").write_text(user)
    assert inert([("Box", "lid")], reads(tmp_path, CARRIERS)) == found
