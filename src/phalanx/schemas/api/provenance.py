"""Bodies about what a job was made of: source, command, environment, parameters and places."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field

from phalanx.core.contract.job import SourceState
from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText

MAX_CHANGED = 50
_Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]


class SourceRequest(RequestBody):
    """`core.contract.job.SourceState`, as the client found it in its work directory."""

    commit: _Hex
    branch: ShortText = ""
    changed: Annotated[
        list[Annotated[str, Field(max_length=300)]], Field(max_length=MAX_CHANGED)
    ] = Field(default_factory=list)
    num_changed: Annotated[int, Field(ge=0, le=10**9)] = 0
    diff_digest: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    @classmethod
    def of(cls, source: SourceState | None) -> Self | None:
        """From a core value; None: nothing is known."""
        if source is None:
            return None
        return cls(
            commit=source.commit,
            branch=source.branch,
            changed=list(source.changed),
            num_changed=source.num_changed,
            diff_digest=source.diff_digest,
        )

    def to_core(self) -> SourceState:
        """As a core value."""
        return SourceState(
            self.commit, self.branch, tuple(self.changed), self.num_changed, self.diff_digest
        )


class SourceView(ResponseBody):
    """The Git commit of the code, and how the files differed from it; `changed` are at most 50 names."""

    commit: str
    branch: str = ""
    changed: list[str] = Field(default_factory=list)
    num_changed: int = 0
    diff_digest: str = ""


class PlaceView(ResponseBody):
    """Where one attempt ran."""

    attempt: int
    at: At
    pool: str
    nodes: list[str]
    slots: int
    kinds: list[str] = Field(default_factory=list)  # of its slots, where the pool names them


class OriginView(ResponseBody):
    """The job that a job was cloned from, and the checkpoint that it began from; None: anew."""

    job: int
    checkpoint: str | None = None


class ProvenanceView(ResponseBody):
    """What a job was made of. `digest` is that of everything that the submission fixed."""

    job: int
    label: str
    url: str = ""  # of its page
    owner: str
    submitted_at: At
    digest: str  # SHA-256; equal for a clone without changes
    source: SourceView | None = None  # None: no Git repository, or a client that does not send it
    code_digest: str | None = None  # of the archive of the work directory; None: no copy was made
    commands: dict[str, list[str]]  # by role
    cwd: str | None = None  # the caller's directory, for `phalanx run`
    image: str | None = None
    env: dict[str, str] = Field(default_factory=dict)  # of the spec; values of secrets withheld
    caller_env: list[str] = Field(default_factory=list)  # names of the variables taken along
    params: dict[str, Any] = Field(default_factory=dict)
    seed: int | None = None
    python: dict[str, Any] | None = None  # packages that the spec installs
    data: dict[str, Any] = Field(default_factory=dict)
    cloned_from: OriginView | None = None
    places: list[PlaceView] = Field(default_factory=list)
