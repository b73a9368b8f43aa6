"""A job template: a job spec with typed parameters, which a submission fills in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, ValidationError, model_validator

from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest
from phalanx.schemas.spec.document import problems_of
from phalanx.schemas.spec.fields import MAX_ENTRIES, Name, Section, Text, optional
from phalanx.schemas.spec.placeholders import fill, placeholder_problems

MAX_PARAMETERS = 100
_MAX_VALUE = 1000
ParameterValue = StrictBool | StrictInt | StrictFloat | Text
_KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
}


class TemplateParameter(Section):
    """A parameter of a template. Without a default each submission has to give its value."""

    type: Literal["text", "int", "float", "bool"] = Field(
        default="text", description="text, int, float or bool."
    )
    default: ParameterValue | None = optional("The value without another one.")
    min: float | None = optional("The least number.")
    max: float | None = optional("The greatest number.")
    choices: Annotated[list[ParameterValue], Field(min_length=1, max_length=MAX_ENTRIES)] | None = (
        optional("The values that are allowed.")
    )
    description: Text = Field(default="", description="What it is for.")

    @model_validator(mode="after")
    def _agrees(self) -> TemplateParameter:
        if self.type not in ("int", "float") and (self.min, self.max) != (None, None):
            raise ValueError(f"min and max are for numbers, not for {self.type}")
        for value in (self.default, *(self.choices or ())):
            wrong = None if value is None else self.fault(value)
            if wrong:
                raise ValueError(f"{value!r} {wrong}")
        return self

    def fault(self, value: object) -> str | None:
        """What is wrong with a value; None for one that is allowed."""
        kinds = _KINDS[self.type]
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.type != "bool"):
            return f"is not of the type {self.type}"
        if isinstance(value, str) and len(value) > _MAX_VALUE:
            return f"is longer than {_MAX_VALUE} characters"
        if self.choices is not None and value not in self.choices:
            return f"must be one of {', '.join(map(str, self.choices[:20]))}"
        if isinstance(value, int | float) and self.min is not None and value < self.min:
            return f"must be at least {self.min:g}"
        if isinstance(value, int | float) and self.max is not None and value > self.max:
            return f"must be at most {self.max:g}"
        return None


class JobTemplate(Section):
    """The document that `phalanx templates put NAME FILE` reads."""

    schema_version: Literal[1] = Field(alias="schema", description="Version of this format.")
    description: Text = Field(default="", description="What its jobs do.")
    parameters: Annotated[dict[Name, TemplateParameter], Field(max_length=MAX_PARAMETERS)] = Field(
        default_factory=dict, description="Parameters by name."
    )
    job: dict[str, Any] = Field(
        description="A job spec; `${params.NAME}` in any text is replaced by a parameter's value."
    )

    def filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The job spec with these values. Raises SpecInvalid with every problem."""
        problems, values = list[Problem](), dict[str, Any]()
        for name in given:
            if name not in self.parameters:
                close = nearest(name, self.parameters)
                known = ", ".join(self.parameters) or "none"
                said = f"did you mean {close}?" if close else f"its parameters: {known}"
                problems.append(Problem(f"set.{name}", f"is no parameter of the template; {said}"))
        for name, rule in self.parameters.items():
            value = given.get(name, rule.default)
            wrong = "has no default: give a value" if value is None else rule.fault(value)
            if wrong:
                shown = None if value is None else str(value)[:100]
                problems.append(Problem(f"set.{name}", wrong, shown))
            values[name] = value
        if problems:
            raise SpecInvalid(problems)
        return fill(self.job, values)


def read_template(data: Mapping[str, Any]) -> JobTemplate:
    """A template from plain data. Raises SpecInvalid with every problem found."""
    try:
        found = JobTemplate.model_validate(dict(data))
    except ValidationError as error:
        raise SpecInvalid(problems_of(error.errors(include_url=False), JobTemplate)) from None
    problems = placeholder_problems(found.job, found.parameters)
    if problems:
        raise SpecInvalid([Problem(f"job.{one.path}", one.message, one.value) for one in problems])
    return found
