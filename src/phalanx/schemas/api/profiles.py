"""Profiles over the API: what is asked for, and what is answered."""

from __future__ import annotations

from pydantic import Field

from phalanx.schemas.api.jobs import Ask, At, View


class ProfileRequest(Ask):
    """A wish for a profile: `steps` with clocks, then `traced` ones with torch's profiler."""

    steps: int = 20
    traced: int = 3
    extras: list[str] = Field(default_factory=list)  # memory, nvtx


class ProfileAsked(View):
    """The ranks were asked; the profile will carry this request's number."""

    attempt: int
    generation: int
    request: int


class SplitView(View):
    """Means over the profiled steps of one rank, in seconds; see `core.profiles.Split`."""

    rank: int
    steps: int
    step_s: float
    data_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    optimizer_s: float = 0.0
    stall_s: float = 0.0
    rest_s: float = 0.0
    samples: float = 0.0
    ops: float = 0.0
    busy: float | None = None


class ProfileView(View):
    """One profile of all ranks. `request` 0: the script asked for it itself."""

    attempt: int
    generation: int
    request: int
    at: At
    first_step: int
    splits: list[SplitView]
    finding: str
    said: str
    advice: str
    trace: str = ""  # where the merged trace lies, as the ranks see it
    notes: list[str] = Field(default_factory=list)

    @property
    def answers(self) -> tuple[int, int, int]:
        """(attempt, generation, request) that it belongs to."""
        return self.attempt, self.generation, self.request


class ProfilesView(View):
    """What is kept of a job, oldest first; `attempt` and `generation` are the live ones."""

    profiles: list[ProfileView]
    attempt: int | None = None
    generation: int | None = None
