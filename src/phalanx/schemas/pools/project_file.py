"""The project file: tenants with guarantees, quotas, weights and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from phalanx.core.residency import DataStore, ResidencyRule, allowed_by, in_words
from phalanx.core.scheduling import Project
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.errors import Problem, SpecInvalid
from phalanx.schemas.pools.retain import RetainSpec
from phalanx.schemas.spec.document import problems_of
from phalanx.schemas.spec.fields import (
    MAX_ENTRIES,
    Name,
    Names,
    Section,
    Text,
    WholeFromOne,
    WholeFromZero,
    optional,
)

MAX_REQUIRED = 50
"""The most labels that one project may require."""
# Allowed values that a message names.
_SHOWN = 8


class RequiredLabel(Section):
    """What the value of a required label must be; empty: any value."""

    values: Annotated[list[Text], Field(min_length=1, max_length=MAX_ENTRIES)] | None = optional(
        "The values that are allowed."
    )
    # No regular expression: one that takes exponential time would stop the control plane.
    pattern: Annotated[str, Field(min_length=1, max_length=100)] | None = optional(
        "What the value looks like, with `*`, `?` and `[0-9]` as in file names, such as `cc-[0-9]*`."
    )

    @model_validator(mode="after")
    def _one_rule(self) -> RequiredLabel:
        if self.values is not None and self.pattern is not None:
            raise ValueError("give either values or pattern")
        return self

    def allows(self, value: str) -> bool:
        """Whether a label may have this value."""
        if self.values is not None:
            return value in self.values
        return self.pattern is None or fnmatchcase(value, self.pattern)

    @property
    def expected(self) -> str:
        """What the value must be, in words."""
        if self.values is not None:
            some = ", ".join(self.values[:_SHOWN])
            more = len(self.values) - _SHOWN
            return f"one of {some}" + (f" and {more} more" if more > 0 else "")
        return "any value" if self.pattern is None else f"a value like {self.pattern}"


SlotsByType = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=100)], WholeFromZero],
    Field(max_length=MAX_ENTRIES),
]
"""Most slots by slot type, as in a node's `slot_type`."""
EVERY_USER = "default"
"""The entry of `users` that holds for every user."""


class UserQuotaSpec(Section):
    """What one user may hold; a key that an entry leaves out is that of `default`."""

    max_slots: WholeFromZero | None = optional("The most slots that the user's jobs may hold.")
    max_running: WholeFromOne | None = optional(
        "Most jobs of the user that may hold slots at the same time."
    )
    max_submitted: WholeFromOne | None = optional(
        "Most jobs of the user that have not ended; further ones are refused at submit."
    )
    max_slots_by_type: SlotsByType = Field(
        default_factory=dict, description="The most slots of each slot type, such as `{H100: 8}`."
    )

    def to_core(self, user: str) -> UserQuota:
        """The planner's value; `user` is empty for every user."""
        types = tuple(sorted(self.max_slots_by_type.items()))
        return UserQuota(user, self.max_slots, self.max_running, types, self.max_submitted)


UserQuotas = Annotated[dict[Text, UserQuotaSpec], Field(max_length=MAX_ENTRIES)]
"""Quotas by user; `default` holds for every user that has no entry of its own."""


def quotas_to_core(users: Mapping[str, UserQuotaSpec]) -> tuple[UserQuota, ...]:
    """The planner's values of an entry `users`."""
    return tuple(
        one.to_core("" if name == EVERY_USER else name) for name, one in sorted(users.items())
    )


class ProjectSpec(Section):
    """One project; absent limits do not limit."""

    name: Name = Field(description="Name of the project, as in a job's `project`.")
    parent: Name | None = optional("Parent project; its limits include those of its children.")
    guaranteed_slots: WholeFromZero = Field(
        default=0, description="Slots available at any time, reclaimed from borrowers when needed."
    )
    weight: Annotated[float, Field(gt=0, le=1e6)] = Field(
        default=1.0, description="Share of the surplus over guarantees, relative to its siblings."
    )
    max_slots: WholeFromZero | None = optional(
        "Quota: the most slots that it may hold, borrowed ones included."
    )
    borrow_slots: WholeFromZero | None = optional("Quota as a number of slots above the guarantee.")
    lend_slots: WholeFromZero | None = optional(
        "Unused guaranteed slots that other projects may borrow; absent: all."
    )
    max_priority: Annotated[int, Field(strict=True, ge=0, le=100)] | None = optional(
        "Highest priority that its jobs may have."
    )
    max_running: WholeFromOne | None = optional("Most jobs that may hold slots at the same time.")
    max_slots_by_type: SlotsByType = Field(
        default_factory=dict,
        description="The most slots of each slot type that it may hold, such as `{H100: 64}`.",
    )
    users: UserQuotas = Field(
        default_factory=dict,
        description="What each user may hold of the project; `default` is for every user.",
    )
    retain: RetainSpec = Field(
        default_factory=RetainSpec,
        description="How long data of its ended jobs is kept, such as `{logs: 30d, jobs: 1y}`.",
    )
    residency: Names = Field(
        default_factory=list,
        description="Values of the label `residency` that the pools and stores of its jobs must have; "
        "empty: any.",
    )
    required_labels: Annotated[dict[Name, RequiredLabel], Field(max_length=MAX_REQUIRED)] = Field(
        default_factory=dict,
        description="Labels that every job submitted from now on must have, with the allowed values.",
    )

    @model_validator(mode="after")
    def _limits_agree(self) -> ProjectSpec:
        if self.max_slots is not None and self.max_slots < self.guaranteed_slots:
            raise ValueError(
                f"max_slots ({self.max_slots}) is below guaranteed_slots ({self.guaranteed_slots})"
            )
        if self.max_slots is not None and self.borrow_slots is not None:
            raise ValueError("give either max_slots or borrow_slots")
        if self.lend_slots is not None and self.lend_slots > self.guaranteed_slots:
            raise ValueError(
                f"lend_slots ({self.lend_slots}) is above guaranteed_slots "
                f"({self.guaranteed_slots}): write a number up to guaranteed_slots"
            )
        return self

    @property
    def quota(self) -> int | None:
        """The most slots it may hold; None: no limit."""
        if self.borrow_slots is not None:
            return self.guaranteed_slots + self.borrow_slots
        return self.max_slots

    def to_core(self, past_slots: float = 0.0) -> Project:
        """The planner's value; `past_slots` is the decayed average of its usage."""
        return Project(
            name=self.name,
            guaranteed_slots=self.guaranteed_slots,
            weight=self.weight,
            max_slots=self.quota,
            lend_slots=self.lend_slots,
            parent=self.parent or "",
            past_slots=past_slots,
            max_running=self.max_running,
            max_slots_by_type=tuple(sorted(self.max_slots_by_type.items())),
            users=quotas_to_core(self.users),
        )


def _store_url(url: str) -> str:
    if "\0" in url or not (url.startswith("/") or url.partition("://")[2]):
        raise ValueError("must be a URL such as s3://bucket/prefix, or an absolute path")
    if "@" in url.partition("://")[2].partition("/")[0] or "?" in url or "#" in url:
        raise ValueError("must not hold credentials, a query or a fragment")
    if ".." in url.split("/"):
        raise ValueError("must not hold `..`")
    return url.rstrip("/") or "/"


class StoreSpec(Section):
    """A store of data outside the nodes, and where it is."""

    url: Annotated[
        str, Field(strict=True, min_length=1, max_length=1000), AfterValidator(_store_url)
    ] = Field(
        description="URL or absolute path; everything below it is of the store, if no longer entry fits."
    )
    residency: Name = Field(description="Where it is, as in the label `residency` of pools.")

    def to_core(self) -> DataStore:
        """The core value."""
        return DataStore(self.url, self.residency)


class ProjectFile(Section):
    """The document that `phalanx projects apply -f` reads."""

    schema_version: Literal[1] = Field(alias="schema", description="Version of this format.")
    projects: Annotated[list[ProjectSpec], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=list, description="The projects."
    )
    users: UserQuotas | None = optional(
        "What each user may hold on the whole platform; it replaces what was applied before."
    )
    stores: Annotated[list[StoreSpec], Field(max_length=MAX_ENTRIES)] | None = optional(
        "Stores of data and checkpoints with their residency; they replace what was applied before."
    )

    @model_validator(mode="after")
    def _not_empty(self) -> ProjectFile:
        if not self.projects and self.users is None and self.stores is None:
            raise ValueError("give projects, users or stores")
        return self


def read_projects(data: Mapping[str, Any]) -> ProjectFile:
    """A project file from plain data. Raises SpecInvalid with every problem found."""
    if "pools" in data and "projects" not in data:
        said = "this is a pool file; `phalanx pools apply -f` reads it"
        raise SpecInvalid([Problem("pools", said)])
    try:
        found = ProjectFile.model_validate(dict(data))
    except ValidationError as error:
        raise SpecInvalid(problems_of(error.errors(include_url=False), ProjectFile)) from None
    counted = Counter(project.name for project in found.projects)
    problems = [
        Problem("projects", f"project {name} is given {times} times")
        for name, times in counted.items()
        if times > 1
    ]
    urls = Counter(store.url for store in found.stores or ())
    problems += [
        Problem("stores", f"store {url} is given {times} times")
        for url, times in urls.items()
        if times > 1
    ]
    if problems:
        raise SpecInvalid(problems)
    return found


def check_tree(projects: Iterable[ProjectSpec]) -> list[Problem]:
    """Problems of all projects together: unknown parents, cycles, guarantees too large."""
    known = {project.name: project for project in projects}
    circular = _own_ancestors(known)
    problems = []
    for project in known.values():
        path = f"project {project.name}"
        if project.parent is not None and project.parent not in known:
            problems.append(Problem(path, "the parent is not a project", project.parent))
        elif project.name in circular:
            problems.append(Problem(path, "the project is its own ancestor", project.parent))
        else:
            problems += _residency_problems(known, project)
    guaranteed_below = Counter[str]()
    for project in known.values():
        if project.parent is not None:
            guaranteed_below[project.parent] += project.guaranteed_slots
    for parent in known.values():
        below = guaranteed_below[parent.name]
        if below > parent.guaranteed_slots:
            said = (
                f"guarantees {parent.guaranteed_slots} slots, its parts {below} together: "
                f"raise guaranteed_slots to {below} or lower theirs"
            )
            problems.append(Problem(f"project {parent.name}", said))
    return problems


def _residency_problems(known: Mapping[str, ProjectSpec], project: ProjectSpec) -> list[Problem]:
    """The problem of a project where its residency and those above have no value in common."""
    if not project.residency:
        return []
    rules = [
        ResidencyRule(f"project {one.name}", tuple(one.residency))
        for one in lineage(known, project.name)
        if one.residency
    ]
    if allowed_by(rules) != ():
        return []
    said = f"no residency is allowed by all: {in_words(rules)}"
    return [Problem(f"project {project.name}", said)]


def lineage(projects: Mapping[str, ProjectSpec], name: str) -> tuple[ProjectSpec, ...]:
    """A project and its ancestors, nearest first; empty for a name without a project."""
    found: dict[str, ProjectSpec] = {}
    here = projects.get(name)
    while here is not None and here.name not in found:
        found[here.name] = here
        here = None if here.parent is None else projects.get(here.parent)
    return tuple(found.values())


def _own_ancestors(known: Mapping[str, ProjectSpec]) -> set[str]:
    """The projects that are ancestors of themselves. Every project is visited once."""
    found: set[str] = set()
    visited: set[str] = set()
    for name in known:
        path: dict[str, None] = {}
        here: str | None = name
        while here is not None and here in known and here not in visited:
            visited.add(here)
            path[here] = None
            here = known[here].parent
        if here in path:
            names = list(path)
            found.update(names[names.index(here) :])
    return found
