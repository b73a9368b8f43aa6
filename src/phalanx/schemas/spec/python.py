"""The spec's section `python`: packages that a job brings along, whatever executes it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from phalanx.core.contract.job import PythonRequirements
from phalanx.schemas.spec.fields import (
    MAX_ENTRIES,
    Section,
    optional,
)

# The longest requirement, URL or path.
MAX_LINE = 4096
# `https://user:password@host/…`: what stands there would be in every copy of the spec.
_CREDENTIALS = re.compile(r"://[^/\s]*@")
_NO_SECRETS = (
    "has a password in it; keep the whole address as a secret named PIP_INDEX_URL or UV_INDEX_URL "
    "(`phalanx secrets set`) and list that under `secrets`"
)


def _requirement(text: str) -> str:
    text = text.strip()
    if not text or "\n" in text or text.startswith("-"):
        raise ValueError(
            "write one requirement, such as einops==0.8.1; options have their own keys"
        )
    if _CREDENTIALS.search(text):
        raise ValueError(_NO_SECRETS)
    return text


def _url(text: str) -> str:
    if not re.match(r"(https?|file)://\S+$", text):
        raise ValueError("write the address of a package index, https://…")
    if _CREDENTIALS.search(text):
        raise ValueError(_NO_SECRETS)
    return text


def _index(text: str) -> str:
    return text if text == "none" else _url(text)


def _place(text: str) -> str:
    return _url(text) if "://" in text else text


def _inside(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("write a path inside the work directory: only that travels with the job")
    return text


Requirement = Annotated[str, Field(strict=True, max_length=MAX_LINE), AfterValidator(_requirement)]
Url = Annotated[str, Field(strict=True, max_length=MAX_LINE), AfterValidator(_url)]


class PythonSection(Section):
    """An environment over that of the node, built once for each content and used by many attempts."""

    requirements: (
        Annotated[
            str, Field(strict=True, min_length=1, max_length=MAX_LINE), AfterValidator(_inside)
        ]
        | None
    ) = optional("A requirements file in the work directory.")
    packages: list[Requirement] = Field(
        default_factory=list,
        max_length=MAX_ENTRIES,
        description="Requirements, such as `einops==0.8.1`.",
    )
    installer: Literal["auto", "pip", "uv"] = Field(
        default="auto", description="auto: uv where the node has it, else pip."
    )
    index_url: (
        Annotated[str, Field(strict=True, max_length=MAX_LINE), AfterValidator(_index)] | None
    ) = optional("Package index in place of the installer's default; none: no index.")
    extra_index_urls: list[Url] = Field(
        default_factory=list, max_length=100, description="More package indexes."
    )
    find_links: list[
        Annotated[
            str, Field(strict=True, min_length=1, max_length=MAX_LINE), AfterValidator(_place)
        ]
    ] = Field(
        default_factory=list,
        max_length=100,
        description="Folders (of the work directory or the nodes) or pages with wheels.",
    )

    @model_validator(mode="after")
    def _something(self) -> PythonSection:
        if self.requirements is None and not self.packages:
            raise ValueError("give `requirements`, `packages` or both")
        return self

    def to_core(self) -> PythonRequirements:
        """The core value."""
        return PythonRequirements(
            requirements=self.requirements,
            packages=tuple(self.packages),
            installer=self.installer,
            index_url=self.index_url,
            extra_index_urls=tuple(self.extra_index_urls),
            find_links=tuple(self.find_links),
        )


def short_form(value: Any) -> Any:
    """`python: requirements.txt` and `python: [einops]` are short for the section."""
    if isinstance(value, str):
        return {"requirements": value}
    return {"packages": value} if isinstance(value, list) else value
