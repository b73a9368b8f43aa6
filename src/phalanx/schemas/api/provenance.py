"""Bodies about what a job was made of: source, command, environment, parameters and places."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Self

from pydantic import Field

from phalanx.core.contract.job import SourceState
from phalanx.core.contract.source_text import shown_difference
from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText
from phalanx.schemas.api.tracking.runs import RunParamView

MAX_CHANGED = 50
MAX_DIFF_CHARS = 1 << 18
"""Characters of the text of a difference; the rest is cut off."""
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
    diff: Annotated[str, Field(max_length=MAX_DIFF_CHARS)] = ""  # the text of the difference
    diff_cut: bool = False  # the text is only the beginning of it

    @classmethod
    def of(cls, source: SourceState | None, diff: str = "") -> Self | None:
        """From a core value and the text of the difference; None: nothing is known."""
        if source is None:
            return None
        return cls(
            commit=source.commit,
            branch=source.branch,
            changed=list(source.changed),
            num_changed=source.num_changed,
            diff_digest=source.diff_digest,
            diff=diff,
            diff_cut=source.diff_cut,
        )

    def to_core(self) -> tuple[SourceState, str]:
        """As a core value, and the text of the difference as it is stored: without credentials."""
        text, cut = shown_difference(self.diff, MAX_DIFF_CHARS)
        digest = hashlib.sha256(text.encode()).hexdigest() if text else ""
        state = SourceState(
            self.commit,
            self.branch,
            tuple(self.changed),
            self.num_changed,
            self.diff_digest,
            digest,
            bool(text) and (cut or self.diff_cut),
        )
        return state, text


class SourceView(ResponseBody):
    """The Git commit of the code, and how the files differed from it; `changed` are at most 50 names."""

    commit: str
    branch: str = ""
    changed: list[str] = Field(default_factory=list)
    num_changed: int = 0
    diff_digest: str = ""
    diff: str = ""  # its text without credentials; empty: not stored
    diff_cut: bool = False  # the text is only the beginning


class NodePlace(ResponseBody):
    """One node of an attempt."""

    attempt: int
    node_rank: int


class SoftwareView(ResponseBody):
    """What the ranks' interpreter saw at the start, on all nodes that reported the same."""

    digest: str  # SHA-256 of the whole
    nodes: list[NodePlace]
    python: str = ""  # empty: the ranks found no Python
    implementation: str = ""
    platform: str = ""
    torch: str = ""
    cuda: str = ""
    hip: str = ""
    driver: str = ""
    packages: dict[str, str] = Field(default_factory=dict)  # version by name


class ImageView(ResponseBody):
    """The image that ranks ran in, with its digest, on all nodes that had the same."""

    image: str
    nodes: list[NodePlace]


class SeedView(ResponseBody):
    """The seed that the script gave, from this generation on."""

    attempt: int
    generation: int
    seed: int


class InputView(ResponseBody):
    """One input as it was staged, on all nodes that found the same."""

    name: str
    place: str
    num_files: int
    size_bytes: int
    fingerprint: str
    nodes: list[NodePlace]


class FactChangeView(ResponseBody):
    """A value that is not the same; None: there is none."""

    name: str  # such as packages.numpy, data.train or env.LR
    before: str | None
    after: str | None


class ResumeView(ResponseBody):
    """The checkpoint that a generation continued from; `path` None: it began anew."""

    attempt: int
    generation: int
    path: str | None
    step: int
    job: int | None = None  # another job, which wrote it


class ProvenanceDiffView(ResponseBody):
    """What differs between two jobs: everything that was fixed at submission, software and inputs."""

    job: int
    against: int
    same: bool
    changes: list[FactChangeView]


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


class BeginningView(ResponseBody):
    """The checkpoint that a job began from, as it was found at the submission."""

    job: int | None = None  # None: of no job of this platform
    path: str
    step: int | None = None  # None: not known


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
    params: dict[str, Any] = Field(default_factory=dict)  # those that count, by name
    run_params: list[RunParamView] = Field(default_factory=list)  # of every source
    seed: int | None = None  # the newest of `seeds`; before the first, that of the trial
    seeds: list[SeedView] = Field(default_factory=list)  # of scripts that use the library
    python: dict[str, Any] | None = None  # packages that the spec installs
    data: dict[str, Any] = Field(default_factory=dict)
    software: list[SoftwareView] = Field(default_factory=list)
    images: list[ImageView] = Field(default_factory=list)  # where the cluster tells them
    #: by attempt and node: what differs from the first report
    software_changes: list[FactChangeView] = Field(default_factory=list)
    inputs: list[InputView] = Field(default_factory=list)  # of `data`, as they were staged
    begins_from: BeginningView | None = None  # None: anew
    resumes: list[ResumeView] = Field(default_factory=list)
    cloned_from: OriginView | None = None
    places: list[PlaceView] = Field(default_factory=list)
