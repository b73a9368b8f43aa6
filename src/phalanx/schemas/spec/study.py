"""The study spec: what a search varies, what it optimizes, when it stops, and the job of a trial.

    spec = validate_study({...})                # SpecInvalid: every problem, with its path
    job = spec.job_for({"lr": 0.01})            # the job spec of one trial, as plain data

`study_document` reads files, also of other tools; `study_checks` finds faults of several keys at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic import WithJsonSchema as Shown

from phalanx.core.search.draw import uniform
from phalanx.core.search.model import RungPolicy, RungResources
from phalanx.core.search.space import (
    ChoiceParameter,
    ConstantParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    Params,
    Space,
)
from phalanx.errors import SpecInvalid
from phalanx.kit.units import MAX_DURATION_S, parse_duration
from phalanx.schemas.spec import placeholders
from phalanx.schemas.spec.document import problems_of
from phalanx.schemas.spec.fields import (
    MAX_ENTRIES,
    MAX_WHOLE,
    Duration,
    Name,
    NotEmpty,
    NotNegative,
    Positive,
    Section,
    WholeFromOne,
    WholeFromZero,
    optional,
    write_duration,
)

STUDY_SCHEMA: Literal[1] = 1
MAX_TRIALS = 1_000_000
"""The most trials of one study."""
MAX_PARALLEL = 100_000
_PARALLEL = 4
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_MAX_DEPTH = 40
_MAX_DRAWS = 1000
Value = str | int | float | bool | None


def _goal(value: Any) -> Any:
    return (
        {"min": "minimize", "max": "maximize"}.get(value, value)
        if isinstance(value, str)
        else value
    )


class ObjectiveSection(Section):
    """The metric that a study optimizes."""

    metric: NotEmpty = Field(
        description="Name of the metric, as in `run.report(epoch=1, val_loss=0.3)`."
    )
    goal: Annotated[Literal["minimize", "maximize"], BeforeValidator(_goal)] = Field(
        default="minimize", description="minimize or maximize; `max: true` is short for the latter."
    )
    at: Literal["best", "last"] = Field(
        default="best", description="Which value of a trial counts: its best or its last one."
    )
    target: float | None = optional("The study ends when a trial reaches this value.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """`max: true`, `min: true`, and the name of a metric alone."""
        if isinstance(value, str):
            return {"metric": value}
        if not isinstance(value, Mapping) or not {"max", "min"} & set(value):
            return value
        rest = {key: one for key, one in value.items() if key not in ("max", "min")}
        given = [key for key in ("max", "min") if key in value]
        if len(given) > 1 or "goal" in rest or not isinstance(value[given[0]], bool):
            raise ValueError("write one of `goal: maximize`, `max: true` and `min: true`")
        return {
            **rest,
            "goal": "maximize" if (given[0] == "max") == value[given[0]] else "minimize",
        }


class SearchSection(Section):
    """How params are chosen. Options that a method does not have are refused."""

    method: Name = Field(
        default="auto",
        description="auto, grid, random, qmc, tpe, bayesian, pbt, pb2, or that of a plugin.",
    )
    seed: WholeFromZero = Field(
        default=0, description="The same seed and the same results give the same suggestions."
    )
    init_points: WholeFromZero | None = Field(
        default=None,
        validation_alias=AliasChoices("init_points", "initial_points"),
        description="Random trials before a model is used; absent: 10.",
    )
    acquisition: Literal["ucb", "ei"] | None = optional(
        "Of `bayesian`: upper confidence bound (the default) or expected improvement."
    )
    kappa: NotNegative | None = optional(
        "Of `bayesian` with ucb: weight of the uncertainty; absent: 2."
    )
    warm_start: list[NotEmpty] = Field(
        default_factory=list,
        max_length=100,
        description="Studies of the same project to learn from, by number or by name (the newest of it); "
        "their three best params come first.",
    )
    options: dict[Name, Any] = Field(
        default_factory=dict, max_length=100, description="Options of a plugin's method."
    )


_BOUNDS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_SCALAR = {"type": ["string", "number", "boolean", "null"]}


def _bounds(value: Any) -> Any:
    if not (isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))):
        raise ValueError("write two numbers, the lower and the upper bound, as in [1e-5, 0.1]")
    low, high = value
    if not low < high:
        raise ValueError(f"the lower bound {low:g} must be below the upper bound {high:g}")
    return (low, high)


def _whole_bounds(value: Any) -> Any:
    low, high = _bounds(value)
    if low != int(low) or high != int(high):
        raise ValueError("write two whole numbers, as in [1, 8]; both are included")
    return (int(low), int(high))


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (abs(value) <= MAX_WHOLE if isinstance(value, int) else math.isfinite(value))
    )


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be finite")
    if isinstance(value, int) and abs(value) > 10**15:
        raise ValueError("put a number of this size in quotes")
    if isinstance(value, str) and len(value) > 4096:
        raise ValueError("a text has at most 4096 characters")
    if not isinstance(value, Value):
        raise ValueError("a value is a number, text, true, false or null")
    return value


def _log(value: Any) -> Any:
    return value if isinstance(value, bool) else _bounds(value)


_ScalarValue = Annotated[Any, AfterValidator(_scalar), Shown(_SCALAR)]
_KINDS = ("log", "float", "int", "values", "value")


class ParameterSection(Section):
    """One parameter: exactly one of `log`, `float`, `int`, `values` and `value`.

    A plain value is short for `value`, a list for `values`.
    """

    log: Annotated[Any, AfterValidator(_log), Shown({"anyOf": [_BOUNDS, {"type": "boolean"}]})] = (
        Field(
            default=None,
            description="Bounds on a logarithmic scale, such as [1e-5, 0.1]; or true with `int`, `float`.",
        )
    )
    float_bounds: Annotated[Any, AfterValidator(_bounds), Shown(_BOUNDS)] = Field(
        default=None, alias="float", description="Bounds, both included."
    )
    int_bounds: Annotated[Any, AfterValidator(_whole_bounds), Shown(_BOUNDS)] = Field(
        default=None, alias="int", description="Bounds of a whole number, both included."
    )
    values: Annotated[list[_ScalarValue], Field(min_length=1, max_length=MAX_ENTRIES)] | None = (
        optional("The values to choose from.")
    )
    value: _ScalarValue = Field(default=None, description="A constant.")
    step: Positive | None = optional("Distance between neighbouring values, of `int` and `float`.")
    when: NotEmpty | None = optional(
        "Condition on other parameters, such as `optimizer == 'sgd'`; absent: always active."
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return {"values": list(value)}
        return value if isinstance(value, Mapping | cls) else {"value": value}

    @model_validator(mode="after")
    def _one_kind(self) -> ParameterSection:
        given = self.kinds
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"write exactly one of log, float, int, values and value, not {found}")
        if self.step is not None and given[0] not in ("int", "float"):
            raise ValueError(f"`step` has no effect with `{given[0]}`; remove it")
        if self.step is not None and given[0] == "int" and self.step != int(self.step):
            raise ValueError("`step` of a whole number is a whole number")
        if self.step is not None and self.log is True:
            raise ValueError("`step` and `log` do not go together; remove one")
        if self.is_log and self.bounds[0] <= 0:
            raise ValueError("the lower bound of a logarithmic scale must be more than 0")
        if isinstance(self.log, bool) and given[0] not in ("int", "float"):
            raise ValueError(f"`log: true` has no effect with `{given[0]}`; remove it")
        return self

    @property
    def kinds(self) -> list[str]:
        """The keys among `log`, `float`, `int`, `values` and `value` that say what it is."""
        fields = self.model_fields_set
        given = {
            "log": self.log is not None and not isinstance(self.log, bool),
            "float": self.float_bounds is not None,
            "int": self.int_bounds is not None,
            "values": self.values is not None,
            "value": "value" in fields,
        }
        return [kind for kind in _KINDS if given[kind]]

    @property
    def is_log(self) -> bool:
        """Whether its scale is logarithmic."""
        return bool(self.log)

    @property
    def bounds(self) -> tuple[float, float]:
        """The lower and the upper bound, of `log`, `float` and `int`."""
        found = self.int_bounds or self.float_bounds or self.log
        low, high = found
        return low, high

    def to_core(self) -> Parameter:
        """The core value."""
        (kind,) = self.kinds
        if kind == "value":
            return ConstantParameter(self.value, self.when)
        if self.values is not None:
            return ChoiceParameter(tuple(self.values), self.when)
        low, high = self.bounds
        if kind == "int":
            step = int(self.step or 1)
            return IntParameter(int(low), int(high), self.is_log, step, self.when)
        return FloatParameter(float(low), float(high), self.is_log, self.step, self.when)

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> Any:
        """Only what was given; a constant is written as itself."""
        whole = handler(self)
        if self.kinds == ["value"] and self.when is None:
            return whole["value"]
        return {key: one for key, one in whole.items() if one is not None or key in self.kinds}


def _parameter_name(name: str) -> str:
    if not _PARAMETER.fullmatch(name):
        raise ValueError(
            "write 1 to 100 letters, digits, dots, dashes or underscores, a letter or underscore first"
        )
    return name


ParameterName = Annotated[
    str,
    Field(strict=True),
    AfterValidator(_parameter_name),
    Shown({"type": "string", "pattern": f"^{_PARAMETER.pattern}$"}),
]


def _share(value: Any) -> Any:
    """`20%` as 0.2."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})? ?%", value):
        return float(value.rstrip("% ")) / 100
    return value


def _write_share(value: float | None) -> str | None:
    return None if value is None else f"{value * 100:g}%"


class FailedTrials(Section):
    """When failed trials end a study. Failures of the platform never count."""

    max: WholeFromZero | None = optional("The study fails after more failed trials than this.")
    share: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        BeforeValidator(_share),
        PlainSerializer(_write_share),
        Shown(
            {"type": "string", "pattern": "^[0-9]{1,3}(\\.[0-9]{1,6})? ?%$", "examples": ["20%"]}
        ),
    ] = Field(
        default=None,
        alias="or",
        description="The same for a share of `max` trials, such as 20%; the smaller of both limits counts.",
    )


def _failed(value: Any) -> Any:
    return {"max": value} if isinstance(value, int) and not isinstance(value, bool) else value


class TrialsSection(Section):
    """How many trials, and how many of them at the same time."""

    max: Annotated[int, Field(strict=True, ge=1, le=MAX_TRIALS)] | None = optional(
        "Number of trials. Required, but for a grid, and with a budget."
    )
    parallel: Annotated[int, Field(strict=True, ge=1, le=MAX_PARALLEL)] | None = optional(
        "Trials at the same time, as far as the queue has slots; absent: 4, or the whole population."
    )
    failed: Annotated[FailedTrials, BeforeValidator(_failed)] = Field(
        default_factory=FailedTrials, description="Limit on failed trials; absent: none."
    )
    duplicates: Literal["never", "allow"] = Field(
        default="never", description="Whether params may be tried that have been tried before."
    )


def _hold(value: Any) -> Any:
    if value == "auto":
        return value
    if value == "never":
        return "0s"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("write auto, never, or a duration such as 5s")
    return write_duration(parse_duration(value))


Hold = Annotated[
    str,
    BeforeValidator(_hold),
    Shown(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^(auto|never|[0-9]{1,6}(\.[0-9]{1,6})?(s|m|h)?)$"},
                {"type": "number", "minimum": 0, "maximum": MAX_DURATION_S},
            ],
            "examples": ["auto", "5s", "never"],
        }
    ),
]
Unit = Literal["epoch", "step", "sample", "token"]


class RungShape(Section):
    """The shape of a trial's gang from one rung on, over the job's `resources`."""

    nodes: Annotated[int, Field(strict=True, ge=1, le=20_000)] | None = optional("Nodes.")
    slots_per_node: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = optional(
        "Slots on each node."
    )

    @model_validator(mode="after")
    def _not_empty(self) -> RungShape:
        if self.nodes is None and self.slots_per_node is None:
            raise ValueError("write nodes, slots_per_node or both")
        return self


class RungsSection(Section):
    """Units of training at which trials are compared; the worse ones go no further."""

    rule: Literal["asha", "hyperband", "pasha", "median", "percentile"] = Field(
        default="asha", description="How trials are compared."
    )
    type: Literal["promotion", "stop"] = Field(
        default="promotion",
        description="promotion: trials pause at a rung, the best go on; stop: the worse end there.",
    )
    unit: Unit = Field(default="epoch", description="What `min` and `max` count.")
    min: WholeFromOne = Field(default=1, description="The first rung.")
    max: WholeFromOne = Field(description="The last rung: the whole training of a trial.")
    eta: Annotated[int, Field(strict=True, ge=2, le=100)] = Field(
        default=3,
        description="One trial of so many goes on; each rung is so many times the one before.",
    )
    brackets: Annotated[int, Field(strict=True, ge=1, le=20)] = Field(
        default=1,
        description="Brackets with a later first rung each, for metrics that say little early.",
    )
    interval: WholeFromOne | None = optional(
        "Distance of the rungs; absent: each is `eta` times the one before."
    )
    percentile: Annotated[float, Field(gt=0, lt=100)] | None = optional(
        "Of `percentile`: a trial must be at least as good as this share of the others, in percent."
    )
    min_results: WholeFromOne | None = optional(
        "Of `median` and `percentile`: results at a rung before it decides; absent: 5."
    )
    hold: Hold = Field(
        default="auto",
        description="How long a trial keeps its slots at a rung before it pauses: auto (the cost of a "
        "resume), never, or a duration.",
    )
    resources: dict[Annotated[int, Field(ge=1, le=MAX_WHOLE)], RungShape] = Field(
        default_factory=dict,
        max_length=20,
        description="Other shapes for trials on the way to this rung or a later one, as in "
        "{27: {slots_per_node: 4}}.",
    )

    def to_core(self) -> RungPolicy:
        """The core value."""
        return RungPolicy(
            rule=self.rule,
            type=self.type,
            unit=self.unit,
            min=self.min,
            max=self.max,
            eta=self.eta,
            brackets=self.brackets,
            interval=self.interval,
            hold_s=None if self.hold == "auto" else parse_duration(self.hold),
            min_results=5 if self.min_results is None else self.min_results,
            percentile=50.0 if self.percentile is None else self.percentile,
        )

    def shapes(self) -> tuple[RungResources, ...]:
        """The shapes of `resources` as core values, ascending by their rung."""
        return tuple(
            RungResources(unit, one.nodes, one.slots_per_node)
            for unit, one in sorted(self.resources.items())
        )


class PopulationSection(Section):
    """Population based training: the worst trials continue checkpoints of the best ones."""

    size: Annotated[int, Field(strict=True, ge=2, le=10_000)] = Field(
        default=8,
        description="Trials of the population, which run at the same time as far as slots are free.",
    )
    unit: Unit = Field(default="epoch", description="What `every` and `max` count.")
    every: WholeFromOne = Field(default=1, description="Interval between comparisons.")
    max: WholeFromOne = Field(description="The whole training of a trial.")
    quantile: Annotated[float, Field(gt=0, le=0.5)] = Field(
        default=0.25,
        description="The share of trials that is replaced, and the share they are replaced by.",
    )
    resample: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.25, description="Probability of a new value in place of a changed one."
    )
    factors: tuple[Positive, Positive] = Field(
        default=(0.8, 1.2), description="A number is multiplied by one of these."
    )


class EarlyStopSection(Section):
    """End a trial that does not improve any more."""

    patience: WholeFromOne = Field(
        description="Reports without an improvement before a trial ends."
    )
    min_delta: NotNegative = Field(
        default=0.0, description="The least difference that is an improvement."
    )


class StudyBudgetSection(Section):
    """What a study may use. At the end of a budget its trials save, report and end."""

    slot_hours: Positive | None = optional("Hours of slots, of all trials together.")
    usd: Positive | None = optional("US dollars, where the pools have prices.")
    duration: Duration | None = optional("Time from the first trial's start.")

    @field_validator("duration")
    @classmethod
    def _lasts(cls, limit_s: float | None) -> float | None:
        if limit_s is not None and limit_s <= 0:
            raise ValueError("must be longer than 0s; leave it out for no limit")
        return limit_s


class FinalSection(Section):
    """Jobs after the search, with the params that it found."""

    retrain: Literal["best"] = Field(default="best", description="Which params are trained again.")
    seeds: Annotated[int, Field(strict=True, ge=1, le=100)] = Field(
        default=1, description="Number of jobs, each with another PHALANX_SEED."
    )


def _job(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("must be a job spec: a mapping with `run`")
    if _depth(value) > _MAX_DEPTH:
        raise ValueError("is nested too deep")
    return {str(key): one for key, one in value.items()}


def _depth(value: Any) -> int:
    """The nesting of plain data, found without recursion."""
    deepest, rest = 0, [(value, 1)]
    while rest:
        here, depth = rest.pop()
        inner = (
            here.values() if isinstance(here, Mapping) else here if isinstance(here, list) else ()
        )
        if depth > _MAX_DEPTH:
            return depth
        deepest = max(deepest, depth)
        rest += [(one, depth + 1) for one in inner]
    return deepest


class StudySpec(Section):
    """A hyperparameter search. `schema: 1`, `kind: study`."""

    schema_version: Literal[1] = Field(
        default=STUDY_SCHEMA, alias="schema", description="Version of this format."
    )
    kind: Literal["study"] = Field(default="study", description="This is a study, not a job.")
    name: Name = Field(default="study", description="Name of the study; need not be unique.")
    objective: ObjectiveSection = Field(description="What is optimized.")
    search: SearchSection = Field(
        default_factory=SearchSection, description="How params are chosen."
    )
    space: dict[ParameterName, ParameterSection] = Field(
        min_length=1, max_length=MAX_ENTRIES, description="The parameters by name."
    )
    constraints: list[NotEmpty] = Field(
        default_factory=list,
        max_length=100,
        description="What holds for the params of every trial, such as `batch_size * layers <= 512`.",
    )
    start_with: list[dict[ParameterName, _ScalarValue]] = Field(
        default_factory=list,
        max_length=MAX_ENTRIES,
        description="Params of the first trials; parameters that are left out are drawn.",
    )
    trials: TrialsSection = Field(default_factory=TrialsSection, description="Numbers of trials.")
    rungs: RungsSection | None = optional(
        "Comparisons on the way; absent: every trial runs to its end."
    )
    population: PopulationSection | None = optional("Of the methods pbt and pb2.")
    early_stop: EarlyStopSection | None = optional("Ends trials that do not improve.")
    budget: StudyBudgetSection = Field(
        default_factory=StudyBudgetSection, description="Limits of slot time, money and time."
    )
    final: FinalSection | None = optional("Jobs after the search.")
    job: Annotated[dict[str, Any], BeforeValidator(_job), Shown({"type": "object"})] | None = (
        optional(
            "The job spec of a trial; `${params.NAME}` is replaced. Absent: trials are evaluated outside, "
            "through `ask` and `tell`."
        )
    )

    @property
    def num_parallel(self) -> int:
        """Number of trials at the same time."""
        if self.trials.parallel is not None:
            return self.trials.parallel
        if self.population is not None:
            return self.population.size
        return min(_PARALLEL, self.trials.max or _PARALLEL)

    def to_space(self) -> Space:
        """The space as a core value."""
        parameters = {name: one.to_core() for name, one in self.space.items()}
        return Space(parameters, tuple(self.constraints))

    def first_params(self, index: int) -> Params | None:
        """Entry number `index` of `start_with`, with the parameters that it leaves out drawn by the seed.

        None if no draw fits the conditions and constraints. Only for a space without problems.
        """
        space, given = self.to_space(), space_values(self.start_with[index], self.to_space())
        for draw in range(_MAX_DRAWS):
            drawn = {
                name: one.value_at(uniform(self.search.seed, index, f"start/{name}/{draw}"))
                for name, one in space.parameters.items()
            }
            params = space.active({**drawn, **given})
            if given.keys() <= params.keys() and space.allows(params):
                return params
        return None

    def job_for(self, params: Mapping[str, Value]) -> dict[str, Any]:
        """The job spec of one trial, as plain data for `validate_spec`. Empty without a job.

        Raises KeyError for a placeholder that has neither a value in `params` nor a default.
        """
        return placeholders.fill(self.job or {}, params)


def space_values(params: Mapping[str, Value], space: Space) -> dict[str, Value]:
    """Params with whole numbers as floats where the parameter is one."""
    return {
        name: float(value)
        if type(value) is int and isinstance(space.parameters.get(name), FloatParameter)
        else value
        for name, value in params.items()
    }


def validate_study(data: Mapping[str, Any], under: str = "") -> StudySpec:
    """A study spec from plain data. Raises SpecInvalid with every problem found in the form of its keys."""
    try:
        return StudySpec.model_validate(dict(data))
    except ValidationError as error:
        problems = problems_of(error.errors(include_url=False), StudySpec, under)
        raise SpecInvalid(problems) from None


def resolved_study(spec: StudySpec) -> dict[str, Any]:
    """The study with every default filled in, as plain data that `validate_study` reads again."""
    return spec.model_dump(mode="json")
